// What a client sends on the Thrift socket, to a real server over a real node: bytes, frames, calls with arguments
// of any bytes, calls as they should be, half of each, on several connections, with and without a session; hanging
// up at any moment. The daemon answers what it answers with messages that can be read. After each input it holds
// nothing for its clients, and it answers a good one.
//
// An input is a row of steps: a byte that says which (Step below) and on which connection, then what it needs.
#include <poll.h>

#include <array>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "Cairn.h"
#include "common/checksum.h"
#include "common/manifest.h"
#include "glog/logging.h"
#include "proto/frame.h"
#include "server/rpc/server.h"
#include "tests/fuzz/fuzz_input.h"
#include "tests/fuzz/fuzz_support.h"
#include "tests/node/node_fixture.h"
#include "tests/storage/memory_storage.h"

namespace cairn::testing {
namespace {

using apache::thrift::protocol::TMessageType;
using apache::thrift::protocol::TProtocol;

constexpr int kInputsOfLife = 512;
constexpr int kInputsPerLook = 16;  // at the node's status, which costs more than an input
constexpr int kMaxSteps = 32;
constexpr int kReplyMs = 2;  // a call may wait in the node for what never comes
constexpr int kGoodReplyMs = 5000;
constexpr Attempt kAttempt = 7;
constexpr uint64_t kMessageBytes = 2 << 20;

const char* const kMethods[] = {
    "hello",          "rejoin",        "goodbye",   "ping",          "chooseAttempt",
    "resume",         "create",        "seal",      "commit",        "abort",
    "open",           "release",       "renew",     "readChunk",     "latest",
    "statCheckpoint", "stat",          "ls",        "wait",          "persist",
    "remove",         "pin",           "setPolicy", "previewPolicy", "writeChunk",
    "status",         "useCheckpoint", "index",     "mapStanding",   "awaitUnmap",
    "none",
};

enum Step : uint8_t {
  kRaw,         // bytes
  kFrame,       // a frame of these bytes
  kHalfFrame,   // a frame that announces a number of bytes, and fewer of them
  kCall,        // a call's name and arguments of any bytes
  kLongCall,    // the same, followed by KiB that say nothing
  kHello,       // as it should be, of some kind
  kRejoin,      // the session of the last hello, perhaps with another secret
  kCreate,      // these as they should be, on what the replies before have said
  kWriteChunk,  //
  kCommit,      //
  kOpen,        //
  kReadChunk,   //
  kWait,        // for what never comes
  kStopWriting,
  kHangUp,
};

// What the replies of this input have said.
struct Known {
  int64_t session = 0, lease = 0, call = 0;
  std::string secret = std::string(16, 's');
};

std::string Framed(absl::string_view message, size_t announced) {
  std::string bytes(kFrameHeaderBytes, '\0');
  PutFrameLength(static_cast<uint32_t>(announced), bytes.data());
  return bytes.append(message.data(), message.size());
}

// A call whose arguments are bytes, which need not be any.
std::string CallOf(const std::string& name, const std::string& arguments) {
  FrameWriter writer;
  writer.protocol()->writeMessageBegin(name, TMessageType::T_CALL, 1);
  const std::string message = std::string(writer.Finish().substr(kFrameHeaderBytes)) + arguments;
  return Framed(message, message.size());
}

template <typename Args>
std::string MessageOf(const std::string& name, const Args& args) {
  FrameWriter writer;
  writer.protocol()->writeMessageBegin(name, TMessageType::T_CALL, 1);
  args.write(writer.protocol());
  return std::string(writer.Finish());
}

// One connection, and how many of the frames that it has sent were answered.
class Client {
 public:
  explicit Client(const std::string& path) : socket_(ConnectUnix(path, SOCK_STREAM)) {}

  bool open() const { return socket_.valid(); }
  void StopWriting() { shutdown(socket_.get(), SHUT_WR); }

  void Send(absl::string_view bytes) {
    while (open() && !bytes.empty()) {
      const ssize_t sent =
          send(socket_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
      if (sent > 0) {
        Count(bytes.substr(0, static_cast<size_t>(sent)));
        bytes.remove_prefix(static_cast<size_t>(sent));
      } else if (errno != EAGAIN || !AwaitRoom()) {
        return;
      }
    }
  }

  // Until every whole frame is answered, the daemon has closed, or the time is up.
  void TakeReplies(int patience_ms, Known* known) {
    while (open() && replies_ < frames_) {
      const StatusOr<bool> readable = WaitReadable(socket_.get(), waits_ ? 0 : patience_ms);
      if (!readable.ok() || !*readable) {
        waits_ = true;
        return;
      }
      char bytes[16 << 10];
      const ssize_t got = recv(socket_.get(), bytes, sizeof bytes, MSG_DONTWAIT);
      if (got == 0 || (got < 0 && errno != EAGAIN)) return socket_.Reset();
      if (got > 0) in_.append(bytes, static_cast<size_t>(got));
      while (in_.size() >= kFrameHeaderBytes &&
             in_.size() - kFrameHeaderBytes >= FrameLength(in_.data())) {
        const size_t length = FrameLength(in_.data());
        Take(absl::string_view(in_).substr(kFrameHeaderBytes, length), known);
        in_.erase(0, kFrameHeaderBytes + length);
        ++replies_;
      }
    }
  }
  int replies() const { return replies_; }

 private:
  bool AwaitRoom() {
    pollfd one = {socket_.get(), POLLOUT, 0};
    return poll(&one, 1, kReplyMs) == 1;
  }

  void Count(absl::string_view sent) {
    while (!sent.empty()) {
      if (left_ == 0) {
        header_.push_back(sent.front());
        sent.remove_prefix(1);
        if (header_.size() < kFrameHeaderBytes) continue;
        left_ = FrameLength(header_.data());
        header_.clear();
      }
      const size_t part = std::min<size_t>(left_, sent.size());
      sent.remove_prefix(part);
      left_ -= part;
      if (left_ == 0) ++frames_;
    }
  }

  static void Take(absl::string_view message, Known* known) {
    MessageReader reader(64 << 20);
    try {
      TProtocol* const in = reader.Read(message);
      std::string name;
      TMessageType type = TMessageType::T_CALL;
      int32_t sequence = 0;
      in->readMessageBegin(name, type, sequence);
      if (type == TMessageType::T_EXCEPTION) return;
      if (type != TMessageType::T_REPLY) Finding("a reply that is none");
      if (name == "hello") {
        wire::Cairn_hello_result result;
        result.read(in);
        if (!result.__isset.success) return;
        known->session = result.success.session;
        known->secret = result.success.secret;
      } else if (name == "create") {
        wire::Cairn_create_result result;
        result.read(in);
        if (!result.success.extents.empty()) known->lease = result.success.extents[0].lease;
      } else if (name == "open") {
        wire::Cairn_open_result result;
        result.read(in);
        if (result.__isset.success) known->lease = result.success.lease;
      } else {
        in->skip(apache::thrift::protocol::T_STRUCT);
      }
    } catch (const apache::thrift::TException& e) {
      Finding(std::string("a reply that cannot be read: ") + e.what());
    }
  }

  UniqueFd socket_;
  std::string header_, in_;
  size_t left_ = 0;  // of the frame that is being sent
  int frames_ = 0, replies_ = 0;
  bool waits_ = false;  // a call has not been answered in time
};

// --- calls as they should be

std::string Hello(uint8_t kind) {
  wire::HelloRequest request;
  request.__set_protocol(1);
  request.__set_takes_fds((kind & 1) != 0);
  request.__set_job((kind & 2) != 0 ? "other" : "job");
  request.__set_attempt((kind & 4) != 0 ? 0 : kAttempt);
  request.__set_writer((kind & 8) != 0 ? -1 : 0);
  request.__set_world_size((kind & 8) != 0 ? 0 : 1 + (kind >> 6));
  request.__set_process(std::string(16, (kind & 16) != 0 ? 'q' : 'p'));
  wire::Cairn_hello_pargs args;
  args.request = &request;
  return MessageOf("hello", args);
}

std::string Rejoin(bool right, const Known& known) {
  const std::string secret = right ? known.secret : std::string(16, 'x');
  wire::Cairn_rejoin_pargs args;
  args.session = &known.session;
  args.secret = &secret;
  return MessageOf("rejoin", args);
}

std::string NameOf(uint8_t kind) {
  return std::string("object") + static_cast<char>('a' + kind % 4);
}

std::string Create(FuzzInput* input, Known* known) {
  wire::CreateRequest request;
  request.__set_step(input->Byte());
  request.__set_attempt(kAttempt);
  request.__set_writer(0);
  const uint8_t shape = input->Byte();
  request.__set_world_size(1 + (shape & 3));
  request.__set_timeout_ms((shape & 4) != 0 ? 60'000 : 0);
  wire::ObjectSpec spec;
  spec.__set_name(NameOf(input->Byte()));
  spec.__set_length(int64_t{input->Number<uint16_t>()} << (shape >> 4));
  request.__set_objects({spec});
  if ((shape & 8) != 0) {
    spec.__set_name(NameOf(input->Byte()));
    request.objects.push_back(spec);
  }
  ++known->call;
  wire::Cairn_create_pargs args;
  args.call = &known->call;
  args.request = &request;
  return MessageOf("create", args);
}

std::string WriteChunk(FuzzInput* input, Known* known) {
  const int64_t offset = input->Number<int16_t>();
  const std::string data(size_t{input->Number<uint16_t>()} * 4, 'd');
  ++known->call;
  wire::Cairn_writeChunk_pargs args;
  args.call = &known->call;
  args.lease = &known->lease;
  args.offset = &offset;
  args.data = &data;
  return MessageOf("writeChunk", args);
}

// Of one object, as created and written with the bytes that WriteChunk sends.
std::string Commit(FuzzInput* input, Known* known) {
  wire::CommitRequest request;
  request.__set_step(input->Byte());
  request.__set_attempt(kAttempt);
  request.__set_writer(0);
  const uint8_t shape = input->Byte();
  request.__set_world_size(1 + (shape & 3));
  wire::SealedObject seal;
  seal.__set_name(NameOf(input->Byte()));
  const std::string data(input->Number<uint16_t>(), (shape & 4) != 0 ? 'd' : '\0');
  seal.__set_length(static_cast<int64_t>(data.size()));
  for (const uint32_t crc : BlockCrcs(data.data(), data.size(), kBlockBytes)) {
    seal.block_crcs.push_back(static_cast<int32_t>(crc));
  }
  seal.__set_covered({0, seal.length});
  if ((shape & 8) == 0) request.__set_seals({seal});
  ++known->call;
  wire::Cairn_commit_pargs args;
  args.call = &known->call;
  args.request = &request;
  return MessageOf("commit", args);
}

std::string Open(FuzzInput* input, Known* known) {
  wire::OpenRequest request;
  request.checkpoint.__set_step(int64_t{input->Byte()} - 1);
  request.checkpoint.__set_job("job");
  request.__set_name(NameOf(input->Byte()));
  request.__set_mode(static_cast<wire::OpenMode::type>(1 + input->Byte() % 3));
  request.__set_timeout_ms(60'000);
  ++known->call;
  wire::Cairn_open_pargs args;
  args.call = &known->call;
  args.request = &request;
  return MessageOf("open", args);
}

std::string ReadChunk(FuzzInput* input, const Known& known) {
  const int64_t offset = input->Number<int16_t>();
  const auto length = input->Number<int32_t>();
  wire::Cairn_readChunk_pargs args;
  args.lease = &known.lease;
  args.offset = &offset;
  args.length = &length;
  return MessageOf("readChunk", args);
}

std::string Wait() {
  wire::CheckpointRef ref;
  ref.__set_job("job");
  const auto level = wire::Level::CACHED;
  const int64_t a_day = 24 * 3600 * 1000, after = 1 << 20, head = 0;
  const int32_t revision = -1;
  wire::Cairn_wait_pargs args;
  args.checkpoint = &ref;
  args.level = &level;
  args.timeout_ms = &a_day;
  args.after = &after;
  args.after_head = &head;
  args.after_revision = &revision;
  return MessageOf("wait", args);
}

// --- an input

// The fixture of the node's tests without a test around it. A life of the node is some inputs long: what they save
// and set stays for the next ones, and an input should not depend on thousands before it.
class Inputs : public NodeFixture {
 public:
  Inputs() {
    FLAGS_minloglevel = google::GLOG_FATAL;
    (void)ManifestDigest("");  // so that libcrypto's own end comes after this one's
    make_storage_ = [] {
      return storage::MakeMemoryStorage(std::make_shared<storage::MemoryStore>());
    };
    SetUp();
    listener_ = ListenUnix(Path("cairn.sock"), SOCK_STREAM);
    // A message may announce as much as ever, but few long ones fit at once.
    rpc_.max_message_bytes = rpc_.max_message_bytes_of_user = kMessageBytes;
    rpc_.workers = 2;
  }
  ~Inputs() override {
    EndLife();
    TearDown();
  }
  void TestBody() override {}

  void Play(FuzzInput input) {
    if (inputs_++ % kInputsOfLife == 0) {
      EndLife();
      BeginLife();
    }
    Known known;
    std::array<std::optional<Client>, 4> clients;
    for (int step = 0; step < kMaxSteps && !input.empty(); ++step) {
      const uint8_t what = input.Byte();
      std::optional<Client>& client = clients[(what >> 4) % clients.size()];
      if (!client.has_value() || !client->open()) client.emplace(Path("cairn.sock"));
      Play(static_cast<Step>(what & 15), &*client, &input, &known);
      if ((what & 15) == kHangUp) client.reset();
      const bool at_once = (what & 64) != 0;  // the next step, before this one's reply
      if (client.has_value() && !at_once) client->TakeReplies(kReplyMs, &known);
    }
    for (auto& client : clients) client.reset();
    CheckCalm();
  }

 private:
  static void Play(Step step, Client* client, FuzzInput* input, Known* known) {
    switch (step) {
      case kRaw:
        return client->Send(input->Bytes());
      case kFrame: {
        const std::string bytes = input->Bytes();
        return client->Send(Framed(bytes, bytes.size()));
      }
      case kHalfFrame: {
        const auto announced = input->Number<uint32_t>();
        return client->Send(Framed(input->Bytes(), announced));
      }
      case kCall: {
        const std::string name = kMethods[input->Byte() % std::size(kMethods)];
        return client->Send(CallOf(name, input->Bytes()));
      }
      case kLongCall: {
        const std::string name = kMethods[input->Byte() % std::size(kMethods)];
        const std::string tail(size_t{input->Byte()} << 12, 't');
        return client->Send(CallOf(name, input->Bytes() + tail));
      }
      case kHello:
        return client->Send(Hello(input->Byte()));
      case kRejoin:
        return client->Send(Rejoin(input->Byte() % 4 != 0, *known));
      case kCreate:
        return client->Send(Create(input, known));
      case kWriteChunk:
        return client->Send(WriteChunk(input, known));
      case kCommit:
        return client->Send(Commit(input, known));
      case kOpen:
        return client->Send(Open(input, known));
      case kReadChunk:
        return client->Send(ReadChunk(input, *known));
      case kWait:
        return client->Send(Wait());
      case kStopWriting:
        return client->StopWriting();
      case kHangUp:
        return;
    }
  }

  // What the clients had of the daemon has gone with them, and it answers the next one.
  void CheckCalm() {
    {
      // Connections are accepted in their order: once this one is served, the others have been met, too.
      Known known;
      Client good(Path("cairn.sock"));
      good.Send(CallOf("ping", std::string(1, '\0')));
      good.TakeReplies(kGoodReplyMs, &known);
      if (good.replies() != 1) Finding("a good client is not answered");
    }
    AwaitCalm("connections", [&] { return server_->held().connections == 0; });
    AwaitCalm("bytes of messages", [&] { return server_->held().message_bytes == 0; });
    if (inputs_ % kInputsPerLook != 0) return;
    AwaitCalm("sessions and waiting callers", [&] {
      const auto state = node().State(engine::Caller());
      return state.ok() && state->sessions.empty() &&
             state->engine.counters.at("waiting_callers") == 0;
    });
  }

  void BeginLife() {
    journal_ = *journal::Journal::MakeFile(options_.journal);
    StartNode();
    server_ = std::make_unique<rpc::Server>(rpc_, &node(), *listener_.Dup());
    server_->Start();
  }
  void EndLife() {
    if (server_ == nullptr) return;
    node().Stop();
    server_.reset();
    StopNode();
    keeper_.Forget();
  }

  UniqueFd listener_;
  rpc::Options rpc_;
  std::unique_ptr<rpc::Server> server_;
  int64_t inputs_ = 0;
};

}  // namespace
}  // namespace cairn::testing

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static cairn::testing::Inputs inputs;
  inputs.Play(cairn::testing::FuzzInput(data, size));
  return 0;
}
