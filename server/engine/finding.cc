// latest, stat, ls, wait: what exists, and when it comes to be.
#include <algorithm>

#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "server/engine/impl.h"

namespace cairn::engine {
namespace {

constexpr size_t kNamedWriters = 64;
constexpr int32_t kMostListed = 1000;

}  // namespace

Job* Engine::Impl::Readable(const Caller& caller, const std::string& name, MonotonicNanos deadline,
                            const Event& event, bool scan) {
  if (SessionOf(caller) == nullptr) return nullptr;
  Job* job = FindJob(name);
  if (job == nullptr && options_.storage && !giving_up_scan_) {
    const Status valid = ValidateJob(name);
    if (!valid.ok()) {
      Answer(caller.request, valid);
      return nullptr;
    }
    job = GetJob(name);
    scan = true;
  }
  if (job == nullptr) {
    Answer(caller.request, absl::NotFoundError(absl::StrCat("job: ", name, " is unknown")));
    return nullptr;
  }
  if (scan && ScanFirst(caller, job, deadline, event)) return nullptr;
  const Status access = CheckAccess(*job, caller);
  if (!access.ok()) {
    Answer(caller.request, access);
    return nullptr;
  }
  return job;
}

// --- what is known

CheckpointInfo Engine::Impl::InfoOf(const Checkpoint& checkpoint) const {
  CheckpointInfo info;
  info.key = checkpoint.key;
  info.world_size = checkpoint.world_size;
  auto part = checkpoint.parts.begin();
  for (Writer writer = checkpoint.complete ? checkpoint.world_size : 0;
       writer < checkpoint.world_size && info.missing_writers.size() < kNamedWriters; ++writer) {
    while (part != checkpoint.parts.end() && part->first < writer) ++part;
    const bool there =
        part != checkpoint.parts.end() && part->first == writer && part->second->committed;
    if (!there) info.missing_writers.push_back(writer);
  }
  info.bytes = checkpoint.bytes;
  info.objects = checkpoint.names.size();
  info.facts.complete = checkpoint.complete;
  info.facts.resident = checkpoint.complete && checkpoint.Resident();
  info.facts.persisted = checkpoint.persisted;
  info.facts.broken = checkpoint.complete && !checkpoint.Obtainable();
  info.facts.abandoned = Abandoned(checkpoint);
  info.facts.pinned = checkpoint.pinned;
  info.level = LevelOf(info.facts, checkpoint.complete);
  info.created_unix_ms = checkpoint.created_unix_ms;
  info.on_line = OnLine(checkpoint);
  info.digest = checkpoint.digest;
  info.why = checkpoint.why;
  if (info.why.empty() && !checkpoint.complete) {
    info.why = absl::StrCat("lacks writers ", absl::StrJoin(info.missing_writers, ", "),
                            info.missing_writers.size() == kNamedWriters ? ", …" : "");
  }
  if (info.why.empty() && info.facts.abandoned) {
    info.why = absl::StrCat("abandoned: attempt ", checkpoint.job->attempts.rbegin()->first,
                            " went on from before it");
  }
  if (info.why.empty() && checkpoint.owes && !checkpoint.job->persist_problem.empty()) {
    info.why = absl::StrCat("not persisted: ", checkpoint.job->persist_problem);
  }
  return info;
}

ObjectInfo Engine::Impl::InfoOf(const Object& object, bool with_crcs) const {
  ObjectInfo info;
  info.name = object.entry.name;
  info.writer = object.part->key.writer;
  info.kind = object.entry.kind;
  info.length = object.entry.length;
  if (with_crcs) info.block_crcs = object.entry.block_crcs;
  info.verified_unix_ms = object.verified_unix_ms;
  const Checkpoint& checkpoint = *object.part->checkpoint;
  info.facts.complete = checkpoint.complete;
  info.facts.resident = object.resident && object.sealed;
  info.facts.persisted = checkpoint.persisted;
  info.facts.broken = object.sealed && !object.resident && !checkpoint.persisted;
  info.facts.abandoned = Abandoned(checkpoint);
  info.facts.pinned = checkpoint.pinned;
  info.level = LevelOf(info.facts, object.sealed);
  return info;
}

reply::Latest Engine::Impl::LatestOf(const Checkpoint& checkpoint) const {
  return {checkpoint.key, checkpoint.world_size, checkpoint.digest, checkpoint.Resident(),
          checkpoint.persisted};
}

// For showing rather than loading: the line's, else the newest there is of it.
Checkpoint* Engine::Impl::ForShow(const Job& job, const CheckpointRef& ref) const {
  if (ref.step == kNoStep) return NewestOnLine(job);
  if (ref.attempt == 0 && ref.revision < 0) {
    if (Checkpoint* on_line = LineAt(job, ref.step)) return on_line;
  }
  Checkpoint* found = nullptr;
  for (auto at = job.checkpoints.lower_bound({ref.step, 0, 0});
       at != job.checkpoints.end() && std::get<0>(at->first) == ref.step; ++at) {
    Checkpoint* checkpoint = at->second.get();
    if (ref.attempt != 0 && checkpoint->key.attempt != ref.attempt) continue;
    if (ref.revision >= 0 && checkpoint->key.revision != ref.revision) continue;
    found = checkpoint;
  }
  return found;
}

void Engine::Impl::On(const event::Latest& event) {
  Job* job = Readable(event.caller, event.job, event.deadline, event, /*scan=*/false);
  if (job == nullptr) return;
  const Checkpoint* newest = NewestOnLine(*job);
  if (ScanFirst(event.caller, job, event.deadline, event, newest != nullptr)) return;
  if (newest == nullptr) {
    return Answer(event.caller.request, Resolve(*job, CheckpointRef{event.job}).status());
  }
  Answer(event.caller.request, Body(LatestOf(*newest)));
}

void Engine::Impl::On(const event::StatCheckpoint& event) {
  Job* job = Readable(event.caller, event.ref.job, event.deadline, event, /*scan=*/true);
  if (job == nullptr) return;
  const Checkpoint* checkpoint = ForShow(*job, event.ref);
  if (checkpoint == nullptr) {
    return Answer(event.caller.request, Resolve(*job, event.ref).status());
  }
  Answer(event.caller.request, Body(InfoOf(*checkpoint)));
}

std::optional<ObjectInfo> Engine::Impl::Peek(const event::StatObject& event) const {
  const Job* job = FindJob(event.ref.job);
  if (job == nullptr || FindSession(event.caller.session) == nullptr) return std::nullopt;
  if (!CheckAccess(*job, event.caller).ok()) return std::nullopt;
  const Checkpoint* checkpoint = ForShow(*job, event.ref);
  if (checkpoint == nullptr) return std::nullopt;
  const auto object = checkpoint->names.find(event.name);
  if (object == checkpoint->names.end()) return std::nullopt;
  return InfoOf(*object->second, /*with_crcs=*/true);
}

void Engine::Impl::On(const event::StatObject& event) {
  Job* job = Readable(event.caller, event.ref.job, event.deadline, event, /*scan=*/false);
  if (job == nullptr) return;
  const Checkpoint* checkpoint = ForShow(*job, event.ref);
  if (checkpoint == nullptr || !checkpoint->names.contains(event.name)) {
    if (ScanFirst(event.caller, job, event.deadline, event)) return;
  }
  if (checkpoint == nullptr) {
    return Answer(event.caller.request, Resolve(*job, event.ref).status());
  }
  const auto object = checkpoint->names.find(event.name);
  if (object == checkpoint->names.end()) {
    return Answer(event.caller.request, absl::NotFoundError(absl::StrCat(
                                            "name: \"", absl::CHexEscape(event.name),
                                            "\" is not in ", checkpoint->key.DebugString())));
  }
  Answer(event.caller.request, Body(InfoOf(*object->second, /*with_crcs=*/true)));
}

// --- ls

void Engine::Impl::On(const event::List& event) {
  const RequestId request = event.caller.request;
  if (event.limit < 1) {
    return Answer(request,
                  absl::InvalidArgumentError(absl::StrCat("limit: ", event.limit, " is below 1")));
  }
  const size_t limit = static_cast<size_t>(std::min(event.limit, kMostListed));
  reply::List list;
  if (event.path.empty()) {
    if (SessionOf(event.caller) == nullptr) return;
    for (auto at = jobs_.upper_bound(event.cursor); at != jobs_.end(); ++at) {
      const Job& job = *at->second;
      if (!job.owned || !CheckAccess(job, event.caller).ok()) continue;
      if (list.jobs.size() == limit) {
        list.next_cursor = list.jobs.back();
        break;
      }
      list.jobs.push_back(job.name);
    }
    return Answer(request, Body(std::move(list)));
  }
  const std::vector<std::string> path = absl::StrSplit(event.path, '/');
  if (path.size() > 2 || path[0].empty() || (path.size() == 2 && path[1].empty())) {
    return Answer(request,
                  absl::InvalidArgumentError(absl::StrCat("path: \"", absl::CHexEscape(event.path),
                                                          "\" is neither JOB nor JOB/STEP")));
  }
  CheckpointRef ref;
  ref.job = path[0];
  if (path.size() == 2 && path[1] != "latest" &&
      (!absl::SimpleAtoi(path[1], &ref.step) || ref.step < 0)) {
    return Answer(request,
                  absl::InvalidArgumentError(absl::StrCat("path: \"", absl::CHexEscape(path[1]),
                                                          "\" is neither a step nor latest")));
  }
  Job* job = Readable(event.caller, ref.job, event.deadline, event, /*scan=*/true);
  if (job == nullptr) return;
  if (!job->owned) {
    return Answer(request, absl::NotFoundError(absl::StrCat("job: ", ref.job, " is not known")));
  }
  if (path.size() == 1) {
    auto at = job->checkpoints.begin();
    if (!event.cursor.empty()) {
      const std::vector<std::string> cursor = absl::StrSplit(event.cursor, '.');
      CheckpointId after{};
      if (cursor.size() != 3 || !absl::SimpleAtoi(cursor[0], &std::get<0>(after)) ||
          !absl::SimpleAtoi(cursor[1], &std::get<1>(after)) ||
          !absl::SimpleAtoi(cursor[2], &std::get<2>(after))) {
        return Answer(request, absl::InvalidArgumentError("cursor: not one that ls gave"));
      }
      at = job->checkpoints.upper_bound(after);
    }
    for (; at != job->checkpoints.end(); ++at) {
      if (list.checkpoints.size() == limit) {
        const CheckpointKey& last = list.checkpoints.back().key;
        list.next_cursor = absl::StrCat(last.step, ".", last.attempt, ".", last.revision);
        break;
      }
      list.checkpoints.push_back(InfoOf(*at->second));
    }
    return Answer(request, Body(std::move(list)));
  }
  const Checkpoint* checkpoint = ForShow(*job, ref);
  if (checkpoint == nullptr) return Answer(request, Resolve(*job, ref).status());
  for (auto at = checkpoint->names.upper_bound(event.cursor); at != checkpoint->names.end(); ++at) {
    if (list.objects.size() == limit) {
      list.next_cursor = list.objects.back().name;
      break;
    }
    list.objects.push_back(InfoOf(*at->second, /*with_crcs=*/false));
  }
  Answer(request, Body(std::move(list)));
}

// --- wait

void Engine::Impl::On(const event::Wait& event) {
  if (SessionOf(event.caller) == nullptr) return;
  const RequestId request = event.caller.request;
  const Status valid = ValidateJob(event.ref.job);
  if (!valid.ok()) return Answer(request, valid);
  Job* job = GetJob(event.ref.job);
  if (ScanFirst(event.caller, job, event.deadline, event)) return;
  const Status access = CheckAccess(*job, event.caller);
  if (!access.ok()) return Answer(request, access);
  std::optional<StatusOr<Body>> verdict = EvaluateWait(event);
  if (verdict.has_value()) return Answer(request, *std::move(verdict));
  if (Park(ParkedKind::kWait, event.caller, job->name, event.deadline, event) != nullptr) {
    job->waits.insert(request);
  }
}

std::optional<StatusOr<Engine::Impl::Body>> Engine::Impl::EvaluateWait(
    const event::Wait& wait) const {
  const auto never = [](auto... why) {
    return StatusOr<Body>(absl::FailedPreconditionError(absl::StrCat("wait: ", why...)));
  };
  if (wait.level == Level::kReplicated) {
    return never("level: REPLICATED can never be reached: 0 replicas are asked for");
  }
  if (wait.level != Level::kCached && wait.level != Level::kPersisted) {
    return StatusOr<Body>(absl::InvalidArgumentError(absl::StrCat(
        "level: ", LevelName(wait.level), " is not one to wait for; CACHED or PERSISTED are")));
  }
  if (wait.level == Level::kPersisted && !options_.storage) {
    return never("level: PERSISTED can never be reached: this daemon has no storage");
  }
  const Job& job = *FindJob(wait.ref.job);
  const Checkpoint* checkpoint = nullptr;
  if (wait.ref.step == kNoStep && wait.after >= 0) {
    const auto next = job.settled.upper_bound(wait.after);
    if (next != job.settled.end() && next->first <= LineBound(job)) checkpoint = next->second;
  } else if (wait.ref.step == kNoStep) {
    checkpoint = NewestOnLine(job);
  } else {
    checkpoint = ForShow(job, wait.ref);
    const auto removed = job.removed.find(wait.ref.step);
    if (checkpoint == nullptr && removed != job.removed.end() &&
        (wait.ref.attempt == 0
             ? removed->second >= (job.attempts.empty() ? 0 : job.attempts.rbegin()->first)
             : wait.ref.attempt <= removed->second)) {
      return StatusOr<Body>(absl::NotFoundError(
          absl::StrCat("step: ", wait.ref.step, " of job ", job.name, " was removed")));
    }
    const Attempt newest = job.attempts.empty() ? 0 : job.attempts.rbegin()->first;
    if (wait.ref.attempt != 0 && wait.ref.attempt < newest &&
        (checkpoint == nullptr || !checkpoint->complete)) {
      return never("attempt ", wait.ref.attempt, " is superseded by ", newest,
                   " and can complete nothing more");
    }
    if (wait.ref.attempt == 0 && checkpoint != nullptr && Abandoned(*checkpoint)) {
      checkpoint = nullptr;  // the line may still get this step
    }
  }
  if (checkpoint == nullptr || !checkpoint->complete) return std::nullopt;
  if (!checkpoint->Obtainable()) {
    return StatusOr<Body>(absl::DataLossError(absl::StrCat(
        checkpoint->key.DebugString(), " has no good copy any more: ", checkpoint->why)));
  }
  if (wait.level == Level::kPersisted && !checkpoint->persisted) {
    if (checkpoint->owes || checkpoint->persisting) return std::nullopt;
    if (checkpoint->skipped || NewestOnLine(job) != checkpoint) {
      if (job.policy.mode == PersistMode::kNewest) {
        return never("level: PERSISTED can never be reached: ", checkpoint->key.DebugString(),
                     " was superseded before its turn, and only the newest is persisted");
      }
    }
    if (job.policy.mode == PersistMode::kEvery) {
      return never("level: PERSISTED can never be reached: every ", job.policy.every,
                   "th step is persisted, and nobody asked for ", checkpoint->key.DebugString());
    }
    return never("level: PERSISTED can never be reached: job ", job.name,
                 " is persisted on demand, and nobody asked for ", checkpoint->key.DebugString());
  }
  return StatusOr<Body>(Body(InfoOf(*checkpoint)));
}

void Engine::Impl::NotifyWaits(Job* job) {
  const std::set<RequestId> waits = job->waits;
  for (RequestId request : waits) {
    const auto at = parked_.find(request);
    if (at == parked_.end()) continue;
    const auto& wait = std::get<event::Wait>(at->second->event);
    const Status access = CheckAccess(*job, wait.caller);
    if (!access.ok()) {
      AnswerParked(request, access);
      continue;
    }
    std::optional<StatusOr<Body>> verdict = EvaluateWait(wait);
    if (verdict.has_value()) AnswerParked(request, *std::move(verdict));
  }
}

}  // namespace cairn::engine
