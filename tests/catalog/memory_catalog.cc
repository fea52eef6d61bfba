#include "tests/catalog/memory_catalog.h"

#include <algorithm>
#include <limits>
#include <map>
#include <set>
#include <tuple>
#include <type_traits>
#include <utility>

#include "common/line.h"

namespace cairn::catalog {
namespace {

int64_t SequenceOf(const Row& row) {
  return std::visit([](const auto& r) { return r.sequence; }, row);
}

// What stays of two versions of a row: the rules of server/catalog/tables.h, in other words.
template <typename OneRow>
OneRow Merged(const OneRow& there, const OneRow& coming) {
  return coming.sequence > there.sequence ? coming : there;
}
JobRow Merged(const JobRow& there, const JobRow& coming) {
  const auto version = [](const JobRow& row) {
    return std::tuple(row.policy_version, row.policy_rank, row.sequence);
  };
  return version(coming) > version(there) ? coming : there;
}
LineRow Merged(const LineRow& there, const LineRow& coming) {
  const auto version = [](const LineRow& row) { return std::pair(row.version, row.sequence); };
  return version(coming) > version(there) ? coming : there;
}
AttemptRow Merged(const AttemptRow& there, const AttemptRow& coming) {
  AttemptRow row = coming.sequence > there.sequence ? coming : there;
  if (row.comes_from == kUnknownStep) row.comes_from = there.comes_from;
  return row;
}
StepRow Merged(const StepRow& there, const StepRow& coming) {
  StepRow row = coming.sequence > there.sequence ? coming : there;
  if (coming.of_home) {
    row.persisted = there.persisted || coming.persisted;
    row.removed = there.removed || coming.removed;
  }
  return row;
}

// Of which checkpoint a row tells; of none: of no job's.
CheckpointKey CheckpointOf(const Row& row) {
  if (const auto* part = std::get_if<PartRow>(&row)) return part->part.checkpoint;
  if (const auto* holder = std::get_if<HolderRow>(&row)) return holder->part.checkpoint;
  if (const auto* step = std::get_if<StepRow>(&row)) return step->checkpoint;
  return {};
}

// Of the rows that tell of a job and of none of its checkpoints.
std::string JobOf(const Row& row) {
  if (const auto* job = std::get_if<JobRow>(&row)) return job->job;
  if (const auto* attempt = std::get_if<AttemptRow>(&row)) return attempt->job;
  if (const auto* line = std::get_if<LineRow>(&row)) return line->record.job;
  return "";
}

bool Takes(const StepRow& step, int64_t sequence) {
  return step.removed && (step.of_home || step.sequence > sequence);
}

}  // namespace

void MemoryRows::WaitUntil(const std::function<bool(const ByIdentity&)>& holds) {
  MutexLock lock(&mu_);
  while (!holds(rows_)) changed_.Wait(&mu_);
}

MemoryRows::ByIdentity MemoryRows::Copy() {
  MutexLock lock(&mu_);
  return rows_;
}

void MemoryRows::Restore(ByIdentity rows) {
  MutexLock lock(&mu_);
  rows_ = std::move(rows);
  changed_.NotifyAll();
}

class MemoryCatalog final : public Catalog {
 public:
  MemoryCatalog(std::shared_ptr<MemoryRows> rows, Author author)
      : rows_(std::move(rows)), author_(std::move(author)) {}

  Status Apply(const std::vector<Row>& rows) override {
    MutexLock lock(&rows_->mu_);
    for (const Row& row : rows) {
      if (const auto* left = std::get_if<LeftRow>(&row)) {
        std::erase_if(rows_->rows_, [&](const auto& held) {
          const auto* holder = std::get_if<HolderRow>(&held.second);
          return holder != nullptr && holder->part.checkpoint == left->checkpoint &&
                 holder->holder == left->holder && holder->sequence < left->sequence;
        });
        const bool complete =
            rows_->rows_.contains(RowIdentity(StepRow{.checkpoint = left->checkpoint}));
        if (!left->whole || complete) continue;
        std::erase_if(rows_->rows_, [&](const auto& held) {
          const auto* part = std::get_if<PartRow>(&held.second);
          return part != nullptr && part->part.checkpoint == left->checkpoint &&
                 part->owner == left->holder && part->sequence < left->sequence;
        });
        continue;
      }
      if (const auto* vanished = std::get_if<VanishedRow>(&row)) {
        const auto step = rows_->rows_.find(RowIdentity(row));
        if (step != rows_->rows_.end() && std::get<StepRow>(step->second).removed) continue;
        std::erase_if(rows_->rows_, [&](const auto& held) {
          return CheckpointOf(held.second) == vanished->checkpoint;
        });
        continue;
      }
      if (const auto* forgotten = std::get_if<ForgottenRow>(&row)) {
        Forget(*forgotten, &rows_->rows_);
        continue;
      }
      const auto [at, is_new] = rows_->rows_.try_emplace(RowIdentity(row), row);
      if (is_new) continue;
      Row& there = at->second;
      there = std::visit(
          [&there](const auto& coming) -> Row {
            return Merged(std::get<std::decay_t<decltype(coming)>>(there), coming);
          },
          row);
    }
    rows_->changed_.NotifyAll();
    return absl::OkStatus();
  }

  StatusOr<std::optional<JobRow>> Job(const std::string& job) override {
    const auto found = Select<JobRow>([&](const JobRow& row) { return row.job == job; });
    return found.empty() ? std::nullopt : std::make_optional(found.front());
  }

  StatusOr<std::vector<std::string>> Jobs() override {
    std::vector<std::string> jobs;
    for (const JobRow& row : Select<JobRow>([](const JobRow&) { return true; })) {
      jobs.push_back(row.job);
    }
    std::sort(jobs.begin(), jobs.end());
    return jobs;
  }

  StatusOr<std::vector<JobRow>> JobsAfter(const std::string& after, int limit) override {
    auto found = Select<JobRow>([&](const JobRow& row) { return row.job > after; });
    std::sort(found.begin(), found.end(),
              [](const JobRow& a, const JobRow& b) { return a.job < b.job; });
    if (found.size() > static_cast<size_t>(limit)) found.resize(static_cast<size_t>(limit));
    return found;
  }

  StatusOr<std::vector<AttemptRow>> Attempts(const std::string& job) override {
    auto found = Select<AttemptRow>([&](const AttemptRow& row) { return row.job == job; });
    std::sort(found.begin(), found.end(),
              [](const AttemptRow& a, const AttemptRow& b) { return a.attempt < b.attempt; });
    return found;
  }

  StatusOr<std::vector<StepRow>> Steps(const std::string& job, Step below, int limit) override {
    auto found = Select<StepRow>([&](const StepRow& row) {
      return row.checkpoint.job == job && row.checkpoint.step < below && !row.removed;
    });
    std::sort(found.begin(), found.end(),
              [](const StepRow& a, const StepRow& b) { return b.checkpoint < a.checkpoint; });
    if (found.size() > static_cast<size_t>(limit)) found.resize(static_cast<size_t>(limit));
    return found;
  }

  StatusOr<std::vector<LineRow>> LineRecords(const std::string& job) override {
    auto found = Select<LineRow>([&](const LineRow& row) { return row.record.job == job; });
    std::sort(found.begin(), found.end(), [](const LineRow& a, const LineRow& b) {
      return std::pair(a.record.number, a.record.kind) < std::pair(b.record.number, b.record.kind);
    });
    return found;
  }

  // By the rule itself.
  StatusOr<std::optional<StepRow>> Latest(const std::string& job) override {
    History history;
    std::map<LineageEntry, StepRow, decltype([](const LineageEntry& a, const LineageEntry& b) {
               return std::pair(a.attempt, a.up_to) < std::pair(b.attempt, b.up_to);
             })>
        newest;
    const auto steps = Steps(job, std::numeric_limits<Step>::max(), 1 << 30);
    const auto records = LineRecords(job);
    for (const StepRow& row : *steps) {
      const CheckpointKey& key = row.checkpoint;
      history.attempts[key.attempt].complete.try_emplace(key.step, key.revision);
      newest.try_emplace({key.attempt, key.step}, row);
    }
    for (const LineRow& row : *records) {
      const auto attempt = history.attempts.find(row.record.number);
      if (row.record.kind != LineRecordKind::kOrigin) {
        history.decisions[row.record.number] = row.record.lineage;
      } else if (attempt != history.attempts.end()) {
        attempt->second.lineage = row.record.lineage;
      }
    }
    const std::vector<LineStep> line = ComputeLine(history);
    if (line.empty()) return std::nullopt;
    return newest.at({line.back().attempt, line.back().step});
  }

  StatusOr<int64_t> NewestSequence() override {
    int64_t newest = 0;
    MutexLock lock(&rows_->mu_);
    for (const auto& [identity, row] : rows_->rows_) {
      if (IsOwn(row)) newest = std::max(newest, SequenceOf(row));
    }
    return newest;
  }

  StatusOr<std::vector<CheckpointKey>> Present(const std::string& job, const CheckpointKey& after,
                                               int limit) override {
    std::set<CheckpointKey> present;
    const auto add = [&](const CheckpointKey& key) {
      if (key.job == job && after < key) present.insert(key);
    };
    for (const StepRow& step : Select<StepRow>([](const StepRow& row) { return !row.removed; })) {
      add(step.checkpoint);
    }
    for (const PartRow& part : Select<PartRow>([&](const PartRow& row) {
           return !row.removed && IsOwn(row) && !IsTaken(row.part.checkpoint, row.sequence);
         })) {
      add(part.part.checkpoint);
    }
    for (const HolderRow& holder : Select<HolderRow>([&](const HolderRow& row) {
           return row.resident && IsOwn(row) && !IsTaken(row.part.checkpoint, row.sequence);
         })) {
      add(holder.part.checkpoint);
    }
    std::vector<CheckpointKey> found(present.begin(), present.end());
    if (found.size() > static_cast<size_t>(limit)) found.resize(static_cast<size_t>(limit));
    return found;
  }

  StatusOr<std::vector<PartRow>> Parts(const CheckpointKey& checkpoint) override {
    auto found =
        Select<PartRow>([&](const PartRow& row) { return row.part.checkpoint == checkpoint; });
    std::sort(found.begin(), found.end(),
              [](const PartRow& a, const PartRow& b) { return a.part < b.part; });
    for (PartRow& part : found) {
      if (!IsTaken(checkpoint, part.sequence)) continue;
      part.persisted = false;
      part.removed = true;
    }
    return found;
  }

  StatusOr<std::vector<HolderRow>> Holders(const CheckpointKey& checkpoint) override {
    auto found = Select<HolderRow>([&](const HolderRow& row) {
      return row.part.checkpoint == checkpoint && row.resident &&
             !IsTaken(checkpoint, row.sequence);
    });
    std::sort(found.begin(), found.end(), [](const HolderRow& a, const HolderRow& b) {
      return std::tie(a.part, a.holder) < std::tie(b.part, b.holder);
    });
    return found;
  }

  StatusOr<std::vector<HolderCount>> HolderCounts(const CheckpointKey& checkpoint) override {
    std::map<std::string, int64_t> counts;
    const auto held = Holders(checkpoint);
    for (const HolderRow& row : *held) ++counts[row.holder];
    std::vector<HolderCount> found;
    for (const auto& [holder, parts] : counts) found.push_back({holder, parts});
    return found;
  }

  StatusOr<std::vector<AuthorRow>> Authors() override {
    auto found = Select<AuthorRow>([](const AuthorRow&) { return true; });
    std::sort(found.begin(), found.end(),
              [](const AuthorRow& a, const AuthorRow& b) { return a.name < b.name; });
    return found;
  }

  StatusOr<int64_t> Marked() override {
    const auto own =
        Select<AuthorRow>([this](const AuthorRow& row) { return row.name == author_.name; });
    return own.empty() ? 0 : own.front().sequence;
  }

 private:
  static void Forget(const ForgottenRow& forgotten, MemoryRows::ByIdentity* rows) {
    const bool is_there = std::any_of(rows->begin(), rows->end(), [&](const auto& held) {
      const Row& row = held.second;
      if (CheckpointOf(row).job != forgotten.job) return false;
      const auto* step = std::get_if<StepRow>(&row);
      const auto* part = std::get_if<PartRow>(&row);
      const auto* holder = std::get_if<HolderRow>(&row);
      if (step != nullptr) return !step->removed;
      const auto of = rows->find(RowIdentity(StepRow{.checkpoint = CheckpointOf(row)}));
      const bool taken = of != rows->end() && Takes(std::get<StepRow>(of->second), SequenceOf(row));
      return !taken && (part != nullptr ? !part->removed : holder->resident);
    });
    if (is_there) return;
    std::erase_if(*rows, [&](const auto& held) {
      return JobOf(held.second) == forgotten.job &&
             (forgotten.of_home || SequenceOf(held.second) < forgotten.sequence);
    });
  }

  bool IsOwn(const Row& row) const {
    if (author_.alone) return true;
    if (const auto* author = std::get_if<AuthorRow>(&row)) return author->name == author_.name;
    if (const auto* part = std::get_if<PartRow>(&row)) return part->owner == author_.name;
    if (const auto* holder = std::get_if<HolderRow>(&row)) return holder->holder == author_.name;
    return false;
  }
  bool IsTaken(const CheckpointKey& checkpoint, int64_t sequence) const {
    MutexLock lock(&rows_->mu_);
    const auto of = rows_->rows_.find(RowIdentity(StepRow{.checkpoint = checkpoint}));
    return of != rows_->rows_.end() && Takes(std::get<StepRow>(of->second), sequence);
  }

  // The rows of one kind that `wanted` holds for.
  template <typename T, typename Wanted>
  std::vector<T> Select(const Wanted& wanted) {
    std::vector<T> all;
    {
      MutexLock lock(&rows_->mu_);
      for (const auto& [identity, row] : rows_->rows_) {
        if (const T* typed = std::get_if<T>(&row)) all.push_back(*typed);
      }
    }
    std::vector<T> found;
    for (const T& row : all) {
      if (wanted(row)) found.push_back(row);
    }
    return found;
  }

  const std::shared_ptr<MemoryRows> rows_;
  const Author author_;
};

std::unique_ptr<Catalog> OpenMemoryCatalog(std::shared_ptr<MemoryRows> rows, const Author& author) {
  return std::make_unique<MemoryCatalog>(std::move(rows), author);
}

}  // namespace cairn::catalog
