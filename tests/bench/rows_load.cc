// load_read, load_map, load_map/next: bytes out of the node's memory, in a new process per sample.
#include <algorithm>
#include <cstring>
#include <vector>

#include "tests/bench/echo.h"
#include "tests/bench/harness.h"

namespace cairn::bench {
namespace {

const int kEchoes = Sized(2000, 20);
const int kFurtherOpens = Sized(500, 5);

client::ConnectOptions Reader(const Values& arguments) {
  client::ConnectOptions options;
  options.socket = arguments.at("socket");
  options.job = "bench";
  return options;
}

// One node with a writer that saves other bytes before every sample.
struct Node {
  std::unique_ptr<testing::Daemon> daemon;
  std::shared_ptr<client::Session> writer;
};

StatusOr<Node> StartNode(const Settings& settings) {
  Node node;
  testing::DaemonOptions options;
  options.budget_bytes = 4 * settings.bytes + (256 << 20);
  CAIRN_ASSIGN_OR_RETURN(node.daemon, testing::Daemon::Start(options));
  CAIRN_ASSIGN_OR_RETURN(node.writer, client::Session::Connect(node.daemon->Client("bench")));
  return node;
}

}  // namespace

StatusOr<Values> LoadReadChild(const Values& arguments) {
  const auto bytes = static_cast<uint64_t>(Number(arguments, "bytes"));
  const auto seed = static_cast<uint64_t>(Number(arguments, "seed"));
  CAIRN_ASSIGN_OR_RETURN(auto session, client::Session::Connect(Reader(arguments)));
  CAIRN_ASSIGN_OR_RETURN(Buffer source, Buffer::Make(bytes));
  CAIRN_ASSIGN_OR_RETURN(Buffer into, Buffer::Make(bytes));
  Values out;
  source.Fill(seed + 1000);
  double start = NowMs();
  std::memcpy(into.data(), source.data(), source.size());
  out["reference"] = absl::StrCat(NowMs() - start);
  CAIRN_RETURN_IF_ERROR(into.Check(seed + 1000));
  start = NowMs();
  // Returns when every byte was copied and has gone through a checksum that matched.
  CAIRN_RETURN_IF_ERROR(ReadBack(session.get(), static_cast<Step>(seed), into));
  out["ours"] = absl::StrCat(NowMs() - start);
  CAIRN_RETURN_IF_ERROR(into.Check(seed));
  return out;
}

StatusOr<Row> LoadRead(const Settings& settings) {
  Row row = {"load_read", "ms", "memcpy, one thread, faulted", 1.5, false, {}, 0, ""};
  row.absurd_reference = 250 * static_cast<double>(settings.bytes) / (uint64_t{1} << 30);
  CAIRN_ASSIGN_OR_RETURN(const Node node, StartNode(settings));
  CAIRN_ASSIGN_OR_RETURN(Buffer source, Buffer::Make(settings.bytes));
  for (int i = 1; i <= settings.pairs; ++i) {
    source.Fill(i);
    CAIRN_RETURN_IF_ERROR(SaveOne(node.writer.get(), i, source));
    CAIRN_RETURN_IF_ERROR(WaitIdle(*node.daemon));
    CAIRN_ASSIGN_OR_RETURN(const Values values, RunChild(settings, "load_read",
                                                         {{"socket", node.daemon->socket()},
                                                          {"bytes", absl::StrCat(settings.bytes)},
                                                          {"seed", absl::StrCat(i)}}));
    row.pairs.push_back({Number(values, "ours"), Number(values, "reference")});
  }
  return row;
}

StatusOr<Values> LoadMapChild(const Values& arguments) {
  const auto seed = static_cast<uint64_t>(Number(arguments, "seed"));
  CAIRN_ASSIGN_OR_RETURN(auto session, client::Session::Connect(Reader(arguments)));
  client::CheckpointRef ref;
  ref.step = static_cast<Step>(seed);
  Values out;
  const double start = NowMs();
  CAIRN_ASSIGN_OR_RETURN(auto object, session->Open(ref, "checkpoint", client::OpenMode::kMap));
  CAIRN_ASSIGN_OR_RETURN(const auto view, object->Map());
  out["ours"] = absl::StrCat((NowMs() - start) * 1000);
  CAIRN_ASSIGN_OR_RETURN(Buffer expected, Buffer::Make(view.length));
  expected.Fill(seed);
  if (std::memcmp(view.data, expected.data(), view.length) != 0) {
    return absl::DataLossError("the mapping holds other bytes");
  }
  std::vector<double> further;
  for (int i = 0; i < kFurtherOpens; ++i) {
    const double opened = NowMs();
    CAIRN_ASSIGN_OR_RETURN(auto again, session->Open(ref, "checkpoint", client::OpenMode::kMap));
    CAIRN_RETURN_IF_ERROR(again->Map().status());
    further.push_back((NowMs() - opened) * 1000);
  }
  out["next"] = absl::StrCat(Median(further));
  const auto client = EchoClient(arguments.at("echo"));
  std::vector<double> echoes;
  for (int i = 0; i < kEchoes; ++i) {
    const double sent = NowMs();
    Echo(client.get());
    echoes.push_back((NowMs() - sent) * 1000);
  }
  out["reference"] = absl::StrCat(Median(echoes));
  return out;
}

namespace {

// `which`: the first open of a process, or the median of those after it.
StatusOr<Row> MeasureOpens(const Settings& settings, const std::string& which, Row row) {
  CAIRN_ASSIGN_OR_RETURN(const Node node, StartNode(settings));
  CAIRN_ASSIGN_OR_RETURN(const auto echo, EchoServer::Start(settings, node.daemon->folder()));
  CAIRN_ASSIGN_OR_RETURN(Buffer source, Buffer::Make(settings.bytes));
  for (int i = 1; i <= settings.pairs; ++i) {
    source.Fill(i);
    CAIRN_RETURN_IF_ERROR(SaveOne(node.writer.get(), i, source));
    CAIRN_RETURN_IF_ERROR(WaitIdle(*node.daemon));
    CAIRN_ASSIGN_OR_RETURN(const Values values, RunChild(settings, "load_map",
                                                         {{"socket", node.daemon->socket()},
                                                          {"echo", echo->socket()},
                                                          {"seed", absl::StrCat(i)}}));
    row.pairs.push_back({Number(values, which), Number(values, "reference")});
  }
  return row;
}

}  // namespace

StatusOr<Row> LoadMap(const Settings& settings) {
  return MeasureOpens(settings, "ours",
                      {"load_map", "us", "Thrift echo, p50", 3.2, false, {}, 500, ""});
}

StatusOr<Row> LoadMapNext(const Settings& settings) {
  return MeasureOpens(settings, "next",
                      {"load_map/next", "us", "Thrift echo, p50", 1.0, false, {}, 500, ""});
}

}  // namespace cairn::bench
