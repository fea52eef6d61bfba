#include "server/node/distant_readers.h"

#include <exception>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"

namespace cairn::node {
namespace {

constexpr size_t kMaxOpenPerSession = 64;
constexpr int kReaderThreads = 16;
constexpr int kThreadsPerJob = 4;
constexpr MonotonicNanos kCallerPatience = 30 * kNanosPerSecond;

// What `call` returns; an exception would end the daemon on a thread that no client waits for.
template <typename Call>
auto Caught(const Call& call) -> decltype(call()) {
  try {
    return call();
  } catch (const std::exception& e) {
    return absl::InternalError(e.what());
  }
}

}  // namespace

DistantReaders::DistantReaders(storage::Storage* storage, bool members)
    : storage_(storage),
      calls_("chunks", storage == nullptr && !members ? 0 : kReaderThreads, kThreadsPerJob) {}

StatusOr<std::shared_ptr<const storage::Reader>> DistantReaders::Open(StoredCheckpoint checkpoint,
                                                                      const std::string& name,
                                                                      storage::Owner reader,
                                                                      MonotonicNanos patience) {
  // It outlives this call when storage hangs.
  struct Opening {
    StoredCheckpoint checkpoint;
    std::string name;
    StatusOr<std::unique_ptr<storage::Reader>> opened = absl::InternalError("not opened");
  };
  const auto opening = std::make_shared<Opening>();
  const std::string job = checkpoint.key.job;
  opening->checkpoint = std::move(checkpoint);
  opening->name = name;
  if (!calls_.Run(job, patience, [storage = storage_, opening, reader] {
        opening->opened =
            Caught([&] { return storage->Open(opening->checkpoint, opening->name, reader); });
      })) {
    return NoAnswer("storage", patience);
  }
  CAIRN_RETURN_IF_ERROR(opening->opened.status());
  return Share(job, *std::move(opening->opened));
}

std::shared_ptr<const storage::Reader> DistantReaders::Share(
    const std::string& job, std::unique_ptr<const storage::Reader> reader) {
  return {reader.release(), [this, job](const storage::Reader* closing) {
            calls_.Add(job, [owned = std::shared_ptr<const storage::Reader>(closing)] {});
          }};
}

void DistantReaders::Stop() {
  {
    MutexLock lock(&mu_);
    stopped_ = true;
  }
  calls_.Stop();
  absl::flat_hash_map<LeaseId, OpenReader> open;
  MutexLock lock(&mu_);
  open.swap(open_);
}

Status DistantReaders::NoAnswer(absl::string_view of, MonotonicNanos patience) const {
  MutexLock lock(&mu_);
  if (stopped_) return absl::UnavailableError("the daemon is stopping");
  return absl::UnavailableError(
      absl::StrCat("no answer from ", of, " for ", patience / kNanosPerMilli, " ms"));
}

LeaseId DistantReaders::NextLease(bool chunks) {
  MutexLock lock(&mu_);
  return kDistantBit | (chunks ? kChunksBit : 0) | ++last_lease_;
}

Status DistantReaders::Add(SessionId session, LeaseId lease, const std::string& job,
                           std::shared_ptr<const storage::Reader> reader) {
  MutexLock lock(&mu_);
  if (stopped_) return absl::UnavailableError("the daemon is stopping");
  size_t held = 0;
  for (const auto& [id, open] : open_) held += open.session == session ? 1 : 0;
  if (held >= kMaxOpenPerSession) {
    return absl::ResourceExhaustedError(absl::StrCat("objects that are read in chunks: ", held,
                                                     " of this session, the limit is ",
                                                     kMaxOpenPerSession));
  }
  open_[lease] = OpenReader{session, job, std::move(reader)};
  return absl::OkStatus();
}

StatusOr<std::string> DistantReaders::Read(SessionId session, LeaseId lease, uint64_t offset,
                                           uint64_t length) {
  struct Reading {
    std::shared_ptr<const storage::Reader> reader;
    std::string bytes;
    Status status;
  };
  const auto reading = std::make_shared<Reading>();
  std::string job;
  {
    MutexLock lock(&mu_);
    const auto it = open_.find(lease);
    if (it == open_.end() || it->second.session != session) {
      return absl::NotFoundError(absl::StrCat("lease: ", lease, " is not this session's"));
    }
    reading->reader = it->second.reader;
    job = it->second.job;
  }
  reading->bytes.resize(length);
  if (!calls_.Run(job, kCallerPatience, [reading, offset] {
        reading->status =
            Caught([&] { return reading->reader->ReadAt(offset, absl::MakeSpan(reading->bytes)); });
      })) {
    return NoAnswer("where the object lies", kCallerPatience);
  }
  CAIRN_RETURN_IF_ERROR(reading->status);
  return std::move(reading->bytes);
}

bool DistantReaders::Holds(SessionId session, LeaseId lease) const {
  MutexLock lock(&mu_);
  const auto it = open_.find(lease);
  return it != open_.end() && it->second.session == session;
}

void DistantReaders::Release(SessionId session, LeaseId lease) {
  MutexLock lock(&mu_);
  const auto it = open_.find(lease);
  if (it != open_.end() && it->second.session == session) open_.erase(it);
}

void DistantReaders::ReleaseAll(SessionId session) {
  MutexLock lock(&mu_);
  for (auto it = open_.begin(); it != open_.end();) {
    if (it->second.session == session) {
      open_.erase(it++);
    } else {
      ++it;
    }
  }
}

}  // namespace cairn::node
