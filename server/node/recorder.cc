#include "server/node/recorder.h"

#include <pthread.h>

#include <algorithm>
#include <chrono>
#include <exception>
#include <utility>

#include "glog/logging.h"

namespace cairn::node {
namespace {

// Milliseconds since the epoch, as a clock or an incarnation counts them, then a count: enough until the year
// 2248.
constexpr int kCountBits = 20;
// More rows than a life can have put that the catalog has not taken when the next life asks: four seconds of the
// clock's count.
constexpr int64_t kUnderWay = int64_t{1} << 32;
// Of the engine's checkpoints at once: each may have rows of a thousand parts.
constexpr int kPage = 50;

int64_t SequenceOf(const catalog::Row& row) {
  return std::visit([](const auto& r) { return r.sequence; }, row);
}

}  // namespace

Recorder::Recorder(const RecorderOptions& options, OpenCatalog open, Clock* clock,
                   RowSource* source)
    : options_(options), open_(std::move(open)), clock_(clock), source_(source) {
  if (open_) thread_ = std::thread([this] { Run(); });
}

void Recorder::SetIncarnation(int64_t incarnation) {
  MutexLock lock(&mu_);
  incarnation_ = incarnation;
}

int64_t Recorder::LifeBase() const {
  MutexLock lock(&mu_);
  return incarnation_ << kCountBits;
}

void Recorder::Put(std::vector<catalog::Row> rows) {
  if (!open_) return;
  MutexLock lock(&mu_);
  if (all_) return;
  for (catalog::Row& row : rows) Keep(std::move(row));
  if (dirty_.size() > options_.max_rows) ForgetRows();
  wake_.NotifyOne();
}

void Recorder::Anew() {
  if (!open_) return;
  MutexLock lock(&mu_);
  ForgetRows();
  wake_.NotifyOne();
}

void Recorder::Begin() { Look(""); }  // which is no job

void Recorder::Look(const std::string& job) {
  if (!open_) return;
  MutexLock lock(&mu_);
  look_at_.insert(job);
  wake_.NotifyOne();
}

void Recorder::Keep(catalog::Row row) {
  const int64_t place = SequenceOf(row);
  const auto [at, is_new] = places_.try_emplace(catalog::RowIdentity(row), place);
  if (!is_new) {
    if (at->second > place) return;
    dirty_.erase(at->second);
    at->second = place;
  }
  dirty_.insert_or_assign(place, std::move(row));
}

void Recorder::ForgetRows() {
  all_ = true;
  dirty_.clear();
  absl::flat_hash_map<std::string, int64_t>().swap(places_);
}

bool Recorder::Wanted() const {
  if (!open_) return false;
  MutexLock lock(&mu_);
  return !all_ && !fenced_;
}

size_t Recorder::waiting() const {
  MutexLock lock(&mu_);
  return dirty_.size();
}

std::string Recorder::State() const {
  if (!open_) return "off";
  MutexLock lock(&mu_);
  if (fenced_) {
    return absl::StrCat(options_.backend,
                        ": nothing is written: another life has this node's rank");
  }
  if (problem_.ok() && idle()) return absl::StrCat(options_.backend, ": up to date");
  const std::string behind = all_ ? "behind, all is to be written anew"
                                  : absl::StrCat("behind by ", dirty_.size(), " rows");
  if (problem_.ok()) return absl::StrCat(options_.backend, ": writing, ", behind);
  return absl::StrCat(options_.backend, ": ", behind, ": ", problem_.message());
}

void Recorder::Flush(int deadline_ms) {
  if (!open_) return;
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::milliseconds(deadline_ms);
  MutexLock lock(&mu_);
  while (!idle() && problem_.ok() && !stopping_) {
    if (!idle_.WaitUntil(&mu_, deadline)) return;
  }
}

void Recorder::Fence() {
  {
    MutexLock lock(&mu_);
    fenced_ = true;
  }
  Stop();
}

void Recorder::Stop() {
  {
    MutexLock lock(&mu_);
    stopping_ = true;
    wake_.NotifyAll();
    idle_.NotifyAll();
  }
  if (thread_.joinable()) thread_.join();
}

// At a time of its own, however much else there is to write.
void Recorder::LookAgainWhenDue() {
  if (options_.look_again_ms == 0 || unseen_.empty()) return;
  const MonotonicNanos now = RealClock()->Now();
  if (now < next_look_) return;
  next_look_ = now + options_.look_again_ms * kNanosPerMilli;
  look_at_.insert(unseen_.begin(), unseen_.end());
}

bool Recorder::MarkIsDue() const {
  if (!marks_ || options_.mark_ms == 0 || source_ == nullptr || base_ == 0) return false;
  return RealClock()->Now() >= next_mark_;
}

std::optional<MonotonicNanos> Recorder::NextDue() const {
  std::optional<MonotonicNanos> next;
  if (options_.look_again_ms != 0 && !unseen_.empty()) next = next_look_;
  const bool marks = marks_ && options_.mark_ms != 0 && source_ != nullptr && base_ != 0;
  if (marks && (!next.has_value() || next_mark_ < *next)) next = next_mark_;
  return next;
}

// Waits for rows, and after a failure for `backoff_ms` as well.
std::optional<Recorder::Work> Recorder::Take(int backoff_ms) {
  Work work;
  MutexLock lock(&mu_);
  LookAgainWhenDue();
  while (dirty_.empty() && !all_ && look_at_.empty() && !stopping_ && !MarkIsDue()) {
    if (const std::optional<MonotonicNanos> due = NextDue()) {
      const auto wait = std::chrono::nanoseconds(*due - RealClock()->Now());
      wake_.WaitUntil(&mu_, std::chrono::steady_clock::now() + wait);
      LookAgainWhenDue();
    } else {
      wake_.Wait(&mu_);
    }
  }
  if (backoff_ms > 0) {
    const auto until = std::chrono::steady_clock::now() + std::chrono::milliseconds(backoff_ms);
    while (!stopping_ && wake_.WaitUntil(&mu_, until)) {
    }
  }
  if (stopping_) return std::nullopt;
  // What is put from now on is written after all that is read from the source.
  work.all = std::exchange(all_, false);
  // What was put before the source is asked is written before: it may be what the answer takes back.
  if (!work.all && dirty_.empty()) work.jobs = std::exchange(look_at_, {});
  while (!work.all && work.jobs.empty() && !dirty_.empty() &&
         work.batch.size() < static_cast<size_t>(options_.batch_rows)) {
    const auto first = dirty_.begin();
    places_.erase(catalog::RowIdentity(first->second));
    work.batch.push_back(std::move(first->second));
    dirty_.erase(first);
  }
  work.mark = MarkIsDue();
  writing_ = work.all || !work.jobs.empty() || !work.batch.empty();  // a mark is nobody's row
  return work;
}

Status Recorder::Do(const Work& work) {
  try {
    if (catalog_ == nullptr) CAIRN_RETURN_IF_ERROR(Open());
    if (!work.all && !Wanted()) return absl::OkStatus();  // it is going to be written with all
    Status status;
    if (work.mark) status = WriteMark();
    if (!status.ok()) {
      // What is to be written stays as it was.
    } else if (work.all) {
      status = WriteAll();
    } else if (!work.jobs.empty()) {
      status = LookAt(work.jobs);
    } else if (!work.batch.empty()) {
      status = Write(work.batch);
    }
    // Opening finds out what is wrong with it, and mends what can be mended.
    if (!status.ok() && !absl::IsUnavailable(status)) catalog_.reset();
    return status;
  } catch (const std::exception& e) {
    return absl::InternalError(e.what());
  }
}

Status Recorder::Open() {
  CAIRN_ASSIGN_OR_RETURN(std::unique_ptr<catalog::Catalog> catalog, open_());
  CAIRN_ASSIGN_OR_RETURN(const int64_t newest, catalog->NewestSequence());
  if (base_ == 0 && source_ != nullptr) {
    CAIRN_ASSIGN_OR_RETURN(const std::vector<std::string> jobs, catalog->Jobs());
    unseen_.insert(jobs.begin(), jobs.end());
    MutexLock lock(&mu_);
    look_at_.insert(jobs.begin(), jobs.end());
  }
  catalog_ = std::move(catalog);
  if (base_ == 0) {
    const int64_t life = LifeBase();
    base_ = std::max(newest == 0 ? 0 : newest + kUnderWay,
                     life > 0 ? life : clock_->UnixMillis() << kCountBits);
  } else if (newest < written_ || newest > tried_) {
    // It was lost, or is another copy. Rows that wait were put in an order that counts from the old base.
    base_ = std::max(base_, newest);
    MutexLock lock(&mu_);
    ForgetRows();
  }
  return absl::OkStatus();
}

Status Recorder::Write(std::vector<catalog::Row> rows) {
  if (rows.empty()) return absl::OkStatus();
  {
    MutexLock lock(&mu_);
    if (stopping_) return absl::CancelledError("the daemon stops");
  }
  base_ = std::max(base_, LifeBase());
  int64_t newest = written_;
  for (catalog::Row& row : rows) {
    std::visit([this](auto& r) { r.sequence += base_; }, row);
    newest = std::max(newest, SequenceOf(row));
  }
  tried_ = std::max(tried_, newest);
  CAIRN_RETURN_IF_ERROR(catalog_->Apply(rows));
  written_ = newest;
  return absl::OkStatus();
}

Status Recorder::WriteMark() {
  if (marked_ != 0) {
    CAIRN_ASSIGN_OR_RETURN(const int64_t there, catalog_->Marked());
    if (there < marked_) {
      LOG(WARNING) << "the catalog has forgotten what was written into it, as a database that was "
                      "restored from an older copy: everything is written anew";
      marked_ = 0;
      MutexLock lock(&mu_);
      ForgetRows();
    }
  }
  std::optional<catalog::AuthorRow> mark = source_->Mark();
  marks_ = mark.has_value();
  if (!marks_) return absl::OkStatus();
  CAIRN_RETURN_IF_ERROR(Write({*std::move(mark)}));
  marked_ = written_;
  next_mark_ = RealClock()->Now() + options_.mark_ms * kNanosPerMilli;
  return absl::OkStatus();
}

Status Recorder::WriteAll() {
  if (source_ == nullptr) return absl::OkStatus();
  left_told_.clear();
  for (const std::string& job : source_->Jobs()) {
    CheckpointKey after{job, kNoStep, 0, 0};
    for (;;) {
      const std::vector<CheckpointKey> page = source_->Checkpoints(after, kPage);
      CAIRN_RETURN_IF_ERROR(Write(source_->Rows(job, page)));
      if (page.empty()) break;
      after = page.back();
    }
  }
  CAIRN_ASSIGN_OR_RETURN(const std::vector<std::string> jobs, catalog_->Jobs());
  for (const std::string& job : jobs) CAIRN_RETURN_IF_ERROR(WriteGone(job));
  return absl::OkStatus();
}

Status Recorder::LookAt(const absl::flat_hash_set<std::string>& jobs) {
  for (const std::string& job : jobs) {
    if (unseen_.contains(job)) CAIRN_RETURN_IF_ERROR(WriteGone(job));
  }
  return absl::OkStatus();
}

Status Recorder::WriteGone(const std::string& job) {
  // Asked first: what is not known yet may be by the time that all is written.
  const Knowledge known = source_->KnowledgeOf(job);
  unseen_.insert(job);
  const bool left = !left_told_.contains(job);
  if (known == Knowledge::kNothing && !left) return absl::OkStatus();
  CheckpointKey after{job, kNoStep, 0, 0};
  for (;;) {
    CAIRN_ASSIGN_OR_RETURN(const std::vector<CheckpointKey> page,
                           catalog_->Present(job, after, kPage));
    if (page.empty()) break;
    CAIRN_RETURN_IF_ERROR(Write(source_->Gone(job, page, left)));
    after = page.back();
  }
  left_told_.insert(job);
  if (known == Knowledge::kAll) unseen_.erase(job);
  return absl::OkStatus();
}

// Puts back what was not written. True: the catalog went away, or came back.
bool Recorder::Settle(Work work, const Status& status) {
  MutexLock lock(&mu_);
  const bool changed = problem_.ok() != status.ok();
  problem_ = status;
  writing_ = false;
  if (!status.ok()) {
    look_at_.insert(work.jobs.begin(), work.jobs.end());
    if (work.all) {
      ForgetRows();
    } else if (!all_) {
      // A version that was put meanwhile is newer.
      for (catalog::Row& row : work.batch) Keep(std::move(row));
      if (dirty_.size() > options_.max_rows) ForgetRows();
    }
  }
  idle_.NotifyAll();
  return changed;
}

void Recorder::Run() {
  pthread_setname_np(pthread_self(), "recorder");
  int backoff_ms = 0;
  while (std::optional<Work> work = Take(backoff_ms)) {
    const Status status = Do(*work);
    const bool changed = Settle(*std::move(work), status);
    if (absl::IsCancelled(status)) continue;
    if (!status.ok()) {
      if (changed) LOG(WARNING) << "catalog is away, saving goes on without it: " << status;
      backoff_ms = std::clamp(backoff_ms * 2, options_.retry_min_ms, options_.retry_max_ms);
    } else {
      if (changed) LOG(INFO) << "catalog is back";
      backoff_ms = 0;
    }
  }
}

}  // namespace cairn::node
