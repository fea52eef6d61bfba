// stream_storage, first_layer: weights of a real node, streamed into the host device.
#include <fcntl.h>
#include <unistd.h>

#include <cstring>
#include <utility>
#include <vector>

#include "client/cpp/weights.h"
#include "client/cpp/weights_plan.h"
#include "client/gpu/host_device.h"
#include "client/gpu/object_source.h"
#include "client/gpu/weight_stream.h"
#include "common/safetensors.h"
#include "tests/bench/harness.h"

namespace cairn::bench {
namespace {

constexpr uint64_t kMiB = 1 << 20;
constexpr uint64_t kFirstBytes = 16 * kMiB;
constexpr char kObject[] = "model.safetensors";

// A step of 400 tensors, whose bytes are `source`.
Status SaveWeights(client::Session* session, Step step, const Buffer& source) {
  constexpr uint64_t kTensors = 400;
  std::vector<TensorEntry> tensors;
  for (uint64_t i = 0, left = source.size(); i < kTensors; ++i) {
    const uint64_t bytes = i + 1 < kTensors ? source.size() / kTensors : left;
    tensors.push_back({absl::StrCat("layers.", i, ".weight"), "U8", {bytes}});
    left -= bytes;
  }
  CAIRN_ASSIGN_OR_RETURN(const std::string header, EncodeSafetensorsHeader(tensors, {}));
  CAIRN_ASSIGN_OR_RETURN(auto writer, session->BeginStep(step));
  const client::Source bytes[] = {{header.data(), header.size()}, {source.data(), source.size()}};
  CAIRN_RETURN_IF_ERROR(writer->Write(kObject, ObjectKind::kSafetensors, bytes));
  return writer->Commit({}).status();
}

// Where the weights go: memory of the host device, faulted.
struct Target {
  std::unique_ptr<gpu::Streamer> streamer;
  gpu::DeviceBlock into;
  char* data() const { return reinterpret_cast<char*>(into.get()); }
};

StatusOr<Target> MakeTarget(uint64_t bytes) {
  Target target;
  target.streamer =
      std::make_unique<gpu::Streamer>(gpu::MakeHostDevice({.memory_bytes = bytes + 64 * kMiB}));
  CAIRN_ASSIGN_OR_RETURN(target.into, gpu::NewDeviceBlock(target.streamer->device(), bytes));
  std::memset(target.data(), 1, bytes);
  return target;
}

// All tensors, one after the other, by two threads.
StatusOr<std::unique_ptr<gpu::WeightStream>> Begin(const Target& target,
                                                   const client::Weights& weights) {
  std::vector<std::shared_ptr<gpu::Source>> sources;
  for (const auto& object : weights.objects()) {
    sources.push_back(std::make_shared<gpu::ObjectSource>(object));
  }
  CAIRN_ASSIGN_OR_RETURN(client::Plan plan, client::MakePlan(weights.index(), {}));
  gpu::StreamOptions options;
  options.threads = 2;
  options.place = [at = target.into.get()](const client::WantedTensor& tensor) mutable {
    return StatusOr<gpu::DevicePtr>(std::exchange(at, at + tensor.bytes));
  };
  return target.streamer->Start(std::move(sources), std::move(plan), std::move(options));
}

// MB/s from the opening of the step on.
StatusOr<double> StreamStored(client::Session* session, const client::CheckpointRef& ref,
                              const Target& target, uint64_t bytes) {
  const double start = NowMs();
  CAIRN_ASSIGN_OR_RETURN(const auto weights, client::Weights::Open(session, ref));
  CAIRN_ASSIGN_OR_RETURN(const auto stream, Begin(target, *weights));
  for (bool more = true; more;) {
    CAIRN_ASSIGN_OR_RETURN(const auto tensors, stream->Next());
    more = !tensors.empty();
  }
  const double ms = NowMs() - start;
  if (!weights->objects().front()->from_storage()) {
    return absl::InternalError("it came from memory");
  }
  return static_cast<double>(bytes) / 1e3 / ms;
}

// Both sides read directly; what else was read of the file is forgotten, too.
Status ForgetPages(const std::string& file) {
  const UniqueFd fd(open(file.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd.valid()) return ErrnoStatus(errno, file);
  const int error = posix_fadvise(fd.get(), 0, 0, POSIX_FADV_DONTNEED);
  return error == 0 ? absl::OkStatus() : ErrnoStatus(error, file);
}

}  // namespace

StatusOr<Row> StreamStorage(const Settings& settings) {
  Row row = {"stream_storage",
             "MB/s",
             "fio, 4 MiB direct into huge pages, best engine",
             0.85,
             true,
             {},
             100,
             "from the open of a step that is in storage alone"};
  testing::DaemonOptions options;
  options.budget_bytes = 4 * settings.bytes + (256 << 20);
  CAIRN_ASSIGN_OR_RETURN(auto daemon, testing::Daemon::Prepare(options, settings.folder));
  CAIRN_RETURN_IF_ERROR(daemon->StartAgain());
  CAIRN_ASSIGN_OR_RETURN(auto session, client::Session::Connect(daemon->Client("bench")));
  CAIRN_ASSIGN_OR_RETURN(Buffer source, Buffer::Make(settings.bytes));
  CAIRN_ASSIGN_OR_RETURN(const Target target, MakeTarget(settings.bytes));
  client::CheckpointRef ref;
  for (int i = 1; i <= settings.pairs; ++i) {
    Pair pair;
    ref.step = i;
    source.Fill(i);
    CAIRN_RETURN_IF_ERROR(SaveWeights(session.get(), i, source));
    CAIRN_RETURN_IF_ERROR(session->Persist(ref));
    CAIRN_RETURN_IF_ERROR(session->Wait(ref, client::Level::kPersisted, absl::Minutes(5)).status());
    CAIRN_RETURN_IF_ERROR(session->Remove(ref, /*memory_only=*/true, /*force=*/false));
    const std::string file = absl::StrCat(daemon->storage(), "/bench/", i, "/", kObject);
    for (int half = 0; half < 2; ++half) {
      sync();
      CAIRN_RETURN_IF_ERROR(WaitIdle(*daemon));
      CAIRN_RETURN_IF_ERROR(ForgetPages(file));
      if ((half + i) % 2 == 0) {
        CAIRN_ASSIGN_OR_RETURN(pair.ours, StreamStored(session.get(), ref, target, settings.bytes));
        if (std::memcmp(target.data(), source.data(), source.size()) != 0) {
          return absl::DataLossError("other bytes arrived");
        }
      } else {
        CAIRN_ASSIGN_OR_RETURN(pair.reference, BestFio(file, settings.bytes, /*read=*/true));
      }
    }
    row.pairs.push_back(pair);
    // A step removed while another is newer: the disk does not have to hold them all.
    ref.step = i - 1;
    if (i > 1) (void)session->Remove(ref, /*memory_only=*/false, /*force=*/true);
  }
  return row;
}

StatusOr<Values> FirstLayerChild(const Values& arguments) {
  const auto seed = static_cast<uint64_t>(Number(arguments, "seed"));
  CAIRN_ASSIGN_OR_RETURN(const Target target,
                         MakeTarget(static_cast<uint64_t>(Number(arguments, "bytes"))));
  CAIRN_ASSIGN_OR_RETURN(Buffer first, Buffer::Make(kFirstBytes));
  first.Fill(seed + 1000);
  double start = NowMs();
  std::memcpy(target.data(), first.data(), first.size());
  const double copy = NowMs() - start;
  first.Fill(seed);
  client::ConnectOptions options;
  options.socket = arguments.at("socket");
  options.job = "bench";
  CAIRN_ASSIGN_OR_RETURN(auto session, client::Session::Connect(options));
  client::CheckpointRef ref;
  ref.step = static_cast<Step>(seed);
  start = NowMs();
  CAIRN_ASSIGN_OR_RETURN(const auto weights, client::Weights::Open(session.get(), ref));
  CAIRN_ASSIGN_OR_RETURN(const auto stream, Begin(target, *weights));
  CAIRN_ASSIGN_OR_RETURN(const auto tensors, stream->Next());
  const double ours = NowMs() - start;
  uint64_t bytes = 0;
  for (const auto& tensor : tensors) bytes += tensor.wanted->bytes;
  if (bytes == 0 || bytes > first.size() || std::memcmp(target.data(), first.data(), bytes) != 0) {
    return absl::DataLossError("other bytes arrived");
  }
  return Values{{"ours", absl::StrCat(ours - copy)}, {"reference", absl::StrCat(copy)}};
}

StatusOr<Row> FirstLayer(const Settings& settings) {
  Row row = {"first_layer",
             "ms",
             "memcpy of 16 MiB, one thread, faulted",
             20,
             false,
             {},
             4,
             "from the open of a step in memory to its first 16 MiB, less the memcpy",
             /*absolute=*/true};
  testing::DaemonOptions options;
  options.budget_bytes = 4 * settings.bytes + (256 << 20);
  CAIRN_ASSIGN_OR_RETURN(const auto daemon, testing::Daemon::Start(options));
  CAIRN_ASSIGN_OR_RETURN(auto writer, client::Session::Connect(daemon->Client("bench")));
  CAIRN_ASSIGN_OR_RETURN(Buffer source, Buffer::Make(settings.bytes));
  for (int i = 1; i <= settings.pairs; ++i) {
    source.Fill(i);
    CAIRN_RETURN_IF_ERROR(SaveWeights(writer.get(), i, source));
    CAIRN_RETURN_IF_ERROR(WaitIdle(*daemon));
    CAIRN_ASSIGN_OR_RETURN(const Values values, RunChild(settings, "first_layer",
                                                         {{"socket", daemon->socket()},
                                                          {"bytes", absl::StrCat(settings.bytes)},
                                                          {"seed", absl::StrCat(i)}}));
    row.pairs.push_back({Number(values, "ours"), Number(values, "reference")});
  }
  return row;
}

}  // namespace cairn::bench
