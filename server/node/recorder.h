// Writes what changed into the catalog, in the background.
//
// A class with a thread of its own because the catalog may be slow or away for any time, and nothing
// waits for it. What is still to be written is one row per identity, the newest. When that is more than
// the bound, all of it is forgotten: once the catalog answers, what there is is read from the engine and
// written anew, and what the catalog still shows and is gone is marked so. So an outage of any length
// costs no more than the bound.
//
// Rows are written in the order of Put. A row's version is its place in that order, added to a number that is greater
// than every version of this author's which the catalog holds when it is first opened, by so much that what its earlier
// life had under way, and the database takes later, is older, too: a later daemon's rows win, whatever its clock says. In
// a ring it is the node's incarnation that the number begins with, so that rows of one writer are in the order
// of (incarnation, place) however many catalogs it has written to; alone it is the clock. The
// number stays, so that rows which waited while the catalog was away keep their place; only a catalog that
// holds what this recorder did not write raises it, and then everything is written anew.
//
// In a ring the recorder also says every few seconds how far it has come (AuthorRow). A catalog that has forgotten
// that was restored from an older copy, or emptied: then, too, everything is written anew.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "common/clock.h"
#include "common/keys.h"
#include "common/mutex.h"
#include "server/catalog/catalog.h"
#include "server/node/options.h"

namespace cairn::node {

using OpenCatalog = std::function<StatusOr<std::unique_ptr<catalog::Catalog>>()>;

// What a source knows of a job now: nothing, and then looking again tells nothing new; some of it, while storage or
// other members may have more; or all, so that what it does not have is gone.
enum class Knowledge : uint8_t { kNothing, kSome, kAll };

// Where everything is read from when it is written anew. Called on the recorder's thread, with none of
// its locks held. A row's `sequence` is its place in the order of all rows, as for Put.
class RowSource {
 public:
  virtual ~RowSource() = default;
  virtual std::vector<std::string> Jobs() = 0;
  // At most `limit` of a job's checkpoints after `after`, in order.
  virtual std::vector<CheckpointKey> Checkpoints(const CheckpointKey& after, int limit) = 0;
  virtual std::vector<catalog::Row> Rows(const std::string& job,
                                         const std::vector<CheckpointKey>& checkpoints) = 0;
  virtual Knowledge KnowledgeOf(const std::string& job) = 0;
  // The rows that say which of these are gone, as far as that is known; with `left` also that this node has nothing of
  // those that it does not know in memory.
  virtual std::vector<catalog::Row> Gone(const std::string& job,
                                         const std::vector<CheckpointKey>& checkpoints,
                                         bool left) = 0;
  // This author as it is now; nullopt: it says nothing of itself. Its `sequence` as that of all rows.
  virtual std::optional<catalog::AuthorRow> Mark() { return std::nullopt; }
};

class Recorder {
 public:
  // `open` runs on the recorder's thread, again after a failure; null: there is no catalog. `source`
  // outlives the recorder, and is called until Stop.
  Recorder(const RecorderOptions& options, OpenCatalog open, Clock* clock, RowSource* source);
  ~Recorder() { Stop(); }

  // This node's life in the ring, which may be told of anew: rows written from now on are of this life. 0:
  // in no ring.
  void SetIncarnation(int64_t incarnation);
  // Each row's `sequence` is greater than those of all rows before.
  void Put(std::vector<catalog::Row> rows);
  // All is read from the source, and written anew.
  void Anew();
  // Opens the catalog, though there is nothing to write, and does Look for all its jobs. From now on the
  // source can be called.
  void Begin();
  // The source may know all of the job by now. What the catalog shows of it and is gone is then marked so,
  // once: the rows of an earlier life that said so may be lost with it.
  void Look(const std::string& job);
  // False: all is going to be read from the source, so that Put would be in vain.
  bool Wanted() const;
  size_t waiting() const;  // rows
  // For status: "off", "sqlite: up to date", "mysql: behind by 12 rows: why".
  std::string State() const;
  // Returns when everything is written, the catalog fails, or `deadline_ms` have passed.
  void Flush(int deadline_ms);
  // Another life has this node's place in the ring: nothing is written any more.
  void Fence();
  void Stop();

 private:
  using Batch = std::vector<catalog::Row>;  // in their order

  // What is to be done next.
  struct Work {
    Batch batch;
    bool all = false;                       // write everything anew
    absl::flat_hash_set<std::string> jobs;  // of which what is gone is to be marked
    bool mark = false;                      // say how far it has come
  };

  void Run();
  // nullopt: stopping.
  std::optional<Work> Take(int backoff_ms);
  Status Do(const Work& work);
  Status Open();
  Status Write(std::vector<catalog::Row> rows);
  Status WriteMark();
  Status WriteAll();
  // And remembers the job to be looked at again, unless all of it was known.
  Status WriteGone(const std::string& job);
  void LookAgainWhenDue() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  bool MarkIsDue() const;
  // When something falls due, whatever is put; nullopt: nothing does.
  std::optional<MonotonicNanos> NextDue() const;
  Status LookAt(const absl::flat_hash_set<std::string>& jobs);
  // The newest of each identity stays.
  void Keep(catalog::Row row) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void ForgetRows() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  bool Settle(Work work, const Status& status);
  bool idle() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return dirty_.empty() && !all_ && !writing_ && look_at_.empty();
  }

  const RecorderOptions options_;
  const OpenCatalog open_;
  Clock* const clock_;
  RowSource* const source_;

  // The thread's own.
  std::unique_ptr<catalog::Catalog> catalog_;
  int64_t base_ = 0;     // added to each row's place in the order; 0: never opened
  int64_t written_ = 0;  // the greatest version that was written
  int64_t tried_ = 0;    // or that may have been
  // Jobs that the catalog has and of which not everything was known when they were looked at.
  absl::flat_hash_set<std::string> unseen_;
  absl::flat_hash_set<std::string> left_told_;  // jobs of which was said what this node has not
  MonotonicNanos next_look_ = 0;                // at all of unseen_
  MonotonicNanos next_mark_ = 0;
  int64_t marked_ = 0;  // the version of the last mark that was written; 0: none was
  bool marks_ = true;   // the source has something to say of itself

  int64_t LifeBase() const;  // of the versions of this life's rows

  mutable Mutex mu_;
  CondVar wake_, idle_;
  int64_t incarnation_ ABSL_GUARDED_BY(mu_) = 0;
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  bool fenced_ ABSL_GUARDED_BY(mu_) = false;
  bool writing_ ABSL_GUARDED_BY(mu_) = false;
  Status problem_ ABSL_GUARDED_BY(mu_);
  absl::flat_hash_set<std::string> look_at_ ABSL_GUARDED_BY(mu_);
  bool all_ ABSL_GUARDED_BY(mu_) = false;  // everything is to be written anew; dirty_ is empty
  std::map<int64_t, catalog::Row> dirty_ ABSL_GUARDED_BY(mu_);  // by their place in the order
  absl::flat_hash_map<std::string, int64_t> places_ ABSL_GUARDED_BY(mu_);  // of each identity
  std::thread thread_;
};

}  // namespace cairn::node
