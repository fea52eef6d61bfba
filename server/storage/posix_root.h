// What every call of the posix storage stands on: the way to the root and to a job's directories,
// options, names that nobody else uses, counters. Thread-safe.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>

#include "common/fd.h"
#include "common/mutex.h"
#include "common/root_marker.h"
#include "common/status.h"
#include "server/storage/part_writer.h"
#include "server/storage/posix_storage.h"

namespace cairn::storage {

// A job's directories, held open while one call works below them.
struct JobDirectories {
  std::string path;  // absolute, of the job
  UniqueFd root;
  UniqueFd job;
  UniqueFd meta;  // .cairn, and the next five are inside it
  UniqueFd writing;
  UniqueFd partial;
  UniqueFd publish;
  UniqueFd abandoned;
  UniqueFd trash;
};

class PosixRoot {
 public:
  // `instance` is random: it tells apart the daemons that share the root.
  PosixRoot(PosixOptions options, uint64_t instance)
      : options_(std::move(options)), instance_(instance) {}

  const PosixOptions& options() const { return options_; }
  AtomicCounters* counters() { return &counters_; }
  const AtomicCounters& counters() const { return counters_; }

  void Expect(const std::string& id);
  StatusOr<RootIdentity> Identity() const;  // as Storage says
  // The root, open for one call. UNAVAILABLE, saying why, when what stands there is not the expected
  // root. Called with the daemon's own rights.
  StatusOr<UniqueFd> Enter() const;
  // UNAVAILABLE when the root's path no longer leads to what was entered. Likewise.
  Status StillThere(int entered) const;

  // The user who owns the job's directory; NOT_FOUND when it has none.
  static StatusOr<Owner> JobOwner(int root, const std::string& job);
  // Opens the job's directories, and with `create` makes those that are missing, as `owner`.
  // PERMISSION_DENIED when the job is another user's; NOT_FOUND when one is missing.
  StatusOr<JobDirectories> OpenJob(const std::string& job, Owner owner, bool create) const;

  // A name for a temporary file. No daemon that shares the root ever draws it too.
  std::string TemporaryName();
  // A number that makes a name below writing/, publish/ or trash/ unique in the same way.
  uint64_t UniqueNumber() { return (instance_ << 20) ^ Next(); }
  // False once the file system has refused to exchange two directories.
  bool exchanges() const { return exchanges_.load(std::memory_order_relaxed); }
  void set_cannot_exchange() { exchanges_.store(false, std::memory_order_relaxed); }
  // Removes temporaries that a dead daemon left in `directory`: those that were last changed so long ago, by
  // the file system's clock. This daemon's own stay, for another thread may be writing them.
  Status RemoveStale(int directory, int64_t seconds) const;

 private:
  struct Found {
    UniqueFd root;
    RootIdentity identity;
  };
  // What stands at the root's path. Makes it and gives it a marker when that may be.
  StatusOr<Found> Look() const;
  // Makes the root's last component where nothing says that a file system is to be mounted there: no
  // marker is required, this node has met no storage yet, and the directory above is not empty, as a
  // mount point is while nothing is mounted. FAILED_PRECONDITION, saying what to do, when it may not.
  Status MakeRoot() const;
  Status Away(absl::string_view why) const;
  std::string expected() const;
  Status MakeJobDirectory(int root, const std::string& job, Owner owner) const;
  std::string OwnPrefix() const;
  uint64_t Next() { return serial_.fetch_add(1) + 1; }

  const PosixOptions options_;
  const uint64_t instance_;
  std::atomic<uint64_t> serial_{0};
  std::atomic<bool> exchanges_{true};
  AtomicCounters counters_;

  mutable Mutex mu_;  // a leaf; never held during a call of the file system
  mutable std::string expected_ ABSL_GUARDED_BY(mu_);  // empty: none has been met
};

}  // namespace cairn::storage
