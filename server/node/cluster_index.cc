#include "server/node/cluster_index.h"

#include <algorithm>
#include <chrono>
#include <exception>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"

namespace cairn::node {
namespace {

bool MaySee(const catalog::JobRow& job, const IndexQuestion& question) {
  if (question.sees_all || question.uid == 0 || question.uid == job.owner_uid) return true;
  switch (job.policy.readers) {
    case Readers::kOwner:
      return false;
    case Readers::kGroup:
      return question.gid == job.owner_gid;
    case Readers::kAll:
      return true;
  }
  return false;
}

Status TooLate(MonotonicNanos asked, MonotonicNanos now) {
  return absl::UnavailableError(absl::StrCat("catalog: the database has not answered for ",
                                             (now - asked) / kNanosPerMilli, " ms"));
}

}  // namespace

ClusterIndex::ClusterIndex(OpenCatalog open, Clock* clock)
    : open_(std::move(open)), clock_(clock) {}

void ClusterIndex::Stop() {
  {
    MutexLock lock(&mu_);
    stopping_ = true;
    answered_.NotifyAll();
  }
  thread_.Stop();
}

StatusOr<IndexAnswer> ClusterIndex::Ask(const IndexQuestion& question, MonotonicNanos deadline) {
  if (open_ == nullptr) {
    return absl::UnavailableError(
        "catalog: this node shares none with others (catalog.mysql names one for a whole ring)");
  }
  const MonotonicNanos asked = clock_->Now();
  const auto until = std::chrono::steady_clock::now() +
                     std::chrono::nanoseconds(std::max<int64_t>(0, deadline - asked));
  const auto waiting = std::make_shared<Waiting>();
  MutexLock lock(&mu_);
  if (waiting_ >= kMostWaiting) {
    return absl::ResourceExhaustedError(
        absl::StrCat("catalog: ", waiting_, " questions wait for it, the limit is ", kMostWaiting));
  }
  ++waiting_;
  thread_.Add([this, question, deadline, waiting] {
    StatusOr<IndexAnswer> answer = Answer(question, deadline);
    MutexLock done(&mu_);
    --waiting_;
    waiting->done = true;
    waiting->answer = std::move(answer);
    answered_.NotifyAll();
  });
  while (!waiting->done && !stopping_) {
    if (!answered_.WaitUntil(&mu_, until)) break;
  }
  if (waiting->done || stopping_) return std::move(waiting->answer);
  return TooLate(asked, clock_->Now());
}

StatusOr<IndexAnswer> ClusterIndex::Answer(const IndexQuestion& question, MonotonicNanos deadline) {
  try {
    if (clock_->Now() > deadline) return absl::UnavailableError("catalog: its turn came too late");
    if (catalog_ == nullptr) {
      CAIRN_ASSIGN_OR_RETURN(catalog_, open_());
    }
    StatusOr<IndexAnswer> answer = Read(question, deadline);
    // Opening finds out what is wrong with it.
    if (absl::IsFailedPrecondition(answer.status()) || absl::IsInternal(answer.status())) {
      catalog_.reset();
    }
    return answer;
  } catch (const std::exception& e) {
    return absl::InternalError(absl::StrCat("catalog: ", e.what()));
  }
}

StatusOr<IndexAnswer> ClusterIndex::Read(const IndexQuestion& question, MonotonicNanos deadline) {
  IndexAnswer answer;
  CAIRN_ASSIGN_OR_RETURN(answer.nodes, catalog_->Authors());
  if (question.limit == 0) return answer;
  CAIRN_RETURN_IF_ERROR(question.job.empty() ? ReadJobs(question, deadline, &answer)
                                             : ReadJob(question, deadline, &answer));
  return answer;
}

Status ClusterIndex::ReadJobs(const IndexQuestion& question, MonotonicNanos deadline,
                              IndexAnswer* answer) {
  constexpr int kPage = 1000;
  const auto limit = static_cast<size_t>(question.limit);
  // Other users' jobs cost a part of a page each, and name no cursor.
  for (std::string after = question.cursor;;) {
    CAIRN_ASSIGN_OR_RETURN(const std::vector<catalog::JobRow> rows,
                           catalog_->JobsAfter(after, kPage));
    for (const catalog::JobRow& row : rows) {
      if (!MaySee(row, question)) continue;
      if (answer->jobs.size() == limit || Late(deadline)) {
        answer->more = true;
        return absl::OkStatus();
      }
      IndexedJob job{.job = row, .latest = std::nullopt};
      CAIRN_ASSIGN_OR_RETURN(const std::optional<catalog::StepRow> latest,
                             catalog_->Latest(row.job));
      if (latest.has_value()) {
        CAIRN_ASSIGN_OR_RETURN(job.latest, WithHolders(*latest));
      }
      answer->last = row.job;
      answer->jobs.push_back(std::move(job));
    }
    if (rows.size() < kPage) break;
    after = rows.back().job;
    if (Late(deadline))
      return absl::UnavailableError("catalog: it answers too slowly to list jobs");
  }
  answer->last.clear();
  return absl::OkStatus();
}

Status ClusterIndex::ReadJob(const IndexQuestion& question, MonotonicNanos deadline,
                             IndexAnswer* answer) {
  CAIRN_ASSIGN_OR_RETURN(const std::optional<catalog::JobRow> row, catalog_->Job(question.job));
  if (!row.has_value()) {
    return absl::NotFoundError(
        absl::StrCat("job: ", question.job, " is not in the catalog of the cluster"));
  }
  if (!MaySee(*row, question)) {
    return absl::PermissionDeniedError(absl::StrCat("job: ", row->job, " is owned by uid ",
                                                    row->owner_uid, ", the caller is uid ",
                                                    question.uid));
  }
  IndexedJob job{.job = *row, .latest = std::nullopt};
  CAIRN_ASSIGN_OR_RETURN(const std::optional<catalog::StepRow> latest, catalog_->Latest(row->job));
  if (latest.has_value()) {
    CAIRN_ASSIGN_OR_RETURN(job.latest, WithHolders(*latest));
  }
  answer->jobs.push_back(std::move(job));
  CAIRN_ASSIGN_OR_RETURN(
      const std::vector<catalog::StepRow> steps,
      catalog_->Steps(row->job, std::numeric_limits<Step>::max(), question.limit + 1));
  for (const catalog::StepRow& step : steps) {
    if (answer->checkpoints.size() == static_cast<size_t>(question.limit) || Late(deadline)) {
      answer->more = true;
      break;
    }
    CAIRN_ASSIGN_OR_RETURN(IndexedCheckpoint checkpoint, WithHolders(step));
    answer->checkpoints.push_back(std::move(checkpoint));
  }
  return absl::OkStatus();
}

// What was found so far reaches the caller only before he stops waiting; and nobody waits once the daemon stops.
bool ClusterIndex::Late(MonotonicNanos deadline) {
  constexpr MonotonicNanos kToAnswer = kNanosPerSecond / 10;
  if (clock_->Now() > deadline - kToAnswer) return true;
  MutexLock lock(&mu_);
  return stopping_;
}

StatusOr<IndexedCheckpoint> ClusterIndex::WithHolders(const catalog::StepRow& step) {
  IndexedCheckpoint checkpoint{.step = step, .holders = {}};
  CAIRN_ASSIGN_OR_RETURN(checkpoint.holders, catalog_->HolderCounts(step.checkpoint));
  return checkpoint;
}

}  // namespace cairn::node
