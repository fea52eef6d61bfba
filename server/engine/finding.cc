#include "server/engine/finding.h"

#include <algorithm>
#include <tuple>
#include <utility>
#include <variant>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "server/engine/cluster.h"

namespace cairn::engine {
namespace {

constexpr int32_t kMostListed = 1000;

template <class... Words>
Status NeverReached(const Words&... why) {
  return absl::FailedPreconditionError(absl::StrCat("wait: ", why...));
}

// Whether this level can be reached at all.
Status CheckLevel(Level level, bool storage, int replicas) {
  if (level == Level::kReplicated) {
    if (replicas > 0) return absl::OkStatus();
    return NeverReached("level: REPLICATED can never be reached: 0 replicas are asked for");
  }
  if (level != Level::kCached && level != Level::kPersisted) {
    return absl::InvalidArgumentError(
        absl::StrCat("level: ", LevelName(level),
                     " is not one to wait for; CACHED, REPLICATED or PERSISTED are"));
  }
  if (level == Level::kPersisted && !storage) {
    return NeverReached("level: PERSISTED can never be reached: this daemon has no storage");
  }
  return absl::OkStatus();
}

// Why no file of it is due. `superseded`: it lost its turn, or a newer one is on the line.
Status NeverPersisted(const Checkpoint& checkpoint, bool superseded) {
  const Job& job = *checkpoint.job;
  const JobPolicy& policy = job.owner->policy;
  if (superseded && policy.mode == PersistMode::kNewest) {
    return NeverReached("level: PERSISTED can never be reached: ", checkpoint.key.DebugString(),
                        " was superseded before its turn, and only the newest is persisted");
  }
  if (policy.mode == PersistMode::kEvery) {
    return NeverReached("level: PERSISTED can never be reached: every ", policy.every,
                        "th step is persisted, and nobody asked for ",
                        checkpoint.key.DebugString());
  }
  return NeverReached("level: PERSISTED can never be reached: job ", job.name,
                      " is persisted on demand, and nobody asked for ",
                      checkpoint.key.DebugString());
}

// Storage said no, and a new try soon would not help: the user has to mend it.
Status CannotPersist(const Checkpoint& checkpoint) {
  const Status& problem = checkpoint.files->problem;
  return {problem.code(), absl::StrCat("wait: ", checkpoint.key.DebugString(),
                                       " cannot be persisted: ", problem.message(),
                                       "; once that is mended, ask to persist it")};
}

}  // namespace

Finding::Finding(const Options& options, Outbox* out, Callers* callers, Jobs* jobs,
                 Sessions* sessions, Standing* standing, Describing* describing, Scanning* scanning,
                 Tables* tables)
    : options_(options),
      out_(*out),
      callers_(*callers),
      jobs_(*jobs),
      sessions_(*sessions),
      standing_(*standing),
      describing_(*describing),
      scanning_(*scanning),
      tables_(*tables) {}

// --- latest, stat

void Finding::On(const event::Latest& event) {
  Job* job = scanning_.Readable(&sessions_, event.caller, event.job, event.deadline, event,
                                /*scan=*/false);
  if (job == nullptr) return;
  // What another member may know of it counts as much.
  if (cluster_->verdicts().Await(event.caller, *job, event.deadline, event)) {
    return;
  }
  const bool nothing = standing_.Newest(*job) == nullptr;
  if (nothing
          ? scanning_.AwaitWhole(event.caller, job, event.deadline, event)
          : scanning_.Await(event.caller, job, event.deadline, event, /*can_do_without=*/true)) {
    return;
  }
  const auto found = describing_.Resolve(*job, CheckpointRef{event.job});
  if (!found.ok()) {
    return out_.Answer(event.caller.request, WhyNothing(*job, found.status()));
  }
  reply::Latest latest = describing_.LatestOf(**found);
  const auto& damaged = job->files->damaged;
  if (!damaged.empty() && damaged.rbegin()->first.step > latest.key.step) {
    latest.passed_over = damaged.rbegin()->second;
  }
  if (options_.storage && !scanning_.Fresh(*job)) {
    latest.as_of_unix_ms = job->scan->read_unix_ms;
  }
  out_.Answer(event.caller.request, Body(std::move(latest)));
}

// A script that hears that there is nothing begins from nothing. So that is no word for what the ring had, and has lost,
// until somebody has decided since, by `resume`; nor has a node that began empty, and has met nobody, anything to say.
Status Finding::WhyNothing(const Job& job, const Status& why) const {
  if (!absl::IsNotFound(why)) return why;
  if (!cluster_->members().Believed()) return Cluster::MetNobody(job.name);
  const auto& [attempt, step] = job.verdict->safe;
  const auto& decisions = job.attempts->decisions;
  const bool decided = !decisions.empty() && decisions.rbegin()->first > attempt;
  if (attempt == 0 || step == kNoStep || decided ||
      job.tombstones->removed.Forbids(step, attempt)) {
    return why;
  }
  return absl::DataLossError(
      absl::StrCat("job ", job.name, ": step ", step, " of attempt ", attempt,
                   " was safe once; no member of the ring and no storage has it now, nor anything "
                   "else of the job; resume(None) begins anew"));
}

void Finding::On(const event::StatCheckpoint& event) {
  Job* job = scanning_.Readable(&sessions_, event.caller, event.ref.job, event.deadline, event,
                                /*scan=*/false);
  if (job == nullptr) return;
  // What memory has is not kept waiting for long.
  const bool known = describing_.ForShow(*job, event.ref) != nullptr;
  if (scanning_.Await(event.caller, job, event.deadline, event, known)) return;
  const Checkpoint* checkpoint = describing_.ForShow(*job, event.ref);
  if (checkpoint == nullptr) {
    if (cluster_->verdicts().Await(event.caller, *job, event.deadline, event)) {
      return;
    }
    return out_.Answer(event.caller.request, describing_.Resolve(*job, event.ref).status());
  }
  AskAgain(*job);
  out_.Answer(event.caller.request, Body(describing_.InfoOf(*checkpoint)));
}

// The answer says how old it is; the next one is younger.
void Finding::AskAgain(const Job& job) {
  if (!cluster_->verdicts().Fresh(job)) cluster_->verdicts().AskHome(job.name);
}

std::optional<ObjectInfo> Finding::Peek(const event::StatObject& event) const {
  const Job* job = jobs_.Find(event.ref.job);
  if (job == nullptr || sessions_.Find(event.caller.session) == nullptr) return std::nullopt;
  if (!Jobs::CheckAccess(*job, event.caller).ok()) return std::nullopt;
  const Checkpoint* checkpoint = describing_.ForShow(*job, event.ref);
  if (checkpoint == nullptr) return std::nullopt;
  const ObjectRef object = ObjectIn(*checkpoint, event.name);
  if (!object) return std::nullopt;
  return describing_.InfoOf(object, /*with_crcs=*/true);
}

void Finding::On(const event::StatObject& event) {
  Job* job = scanning_.Readable(&sessions_, event.caller, event.ref.job, event.deadline, event,
                                /*scan=*/false);
  if (job == nullptr) return;
  Checkpoint* checkpoint = describing_.ForShow(*job, event.ref);
  const bool lacks_table = checkpoint != nullptr && checkpoint->content->without_table > 0;
  if (checkpoint == nullptr || (!lacks_table && !ObjectIn(*checkpoint, event.name))) {
    if (scanning_.Await(event.caller, job, event.deadline, event)) return;
  }
  if (checkpoint == nullptr) {
    return out_.Answer(event.caller.request, describing_.Resolve(*job, event.ref).status());
  }
  if (!ObjectIn(*checkpoint, event.name) &&
      tables_.Await(event.caller, checkpoint, event.deadline, event)) {
    return;
  }
  const StatusOr<ObjectRef> object = ObjectNamed(*checkpoint, event.name);
  if (!object.ok() &&
      cluster_->loads().Await(event.caller, *checkpoint, event.name, event.deadline, event)) {
    return;
  }
  if (!object.ok()) {
    return out_.Answer(
        event.caller.request,
        cluster_->loads().NotHere(describing_.Elsewhere(*checkpoint), object.status()));
  }
  out_.Answer(event.caller.request, Body(describing_.InfoOf(*object, /*with_crcs=*/true)));
}

// --- ls

void Finding::On(const event::List& event) {
  const RequestId request = event.caller.request;
  if (event.limit < 1) {
    return out_.Answer(
        request, absl::InvalidArgumentError(absl::StrCat("limit: ", event.limit, " is below 1")));
  }
  const size_t limit = static_cast<size_t>(std::min(event.limit, kMostListed));
  if (event.path.empty()) return ListJobs(event, limit);
  const StatusOr<ListPath> path = ParseListPath(event.path);
  if (!path.ok()) return out_.Answer(request, path.status());
  const CheckpointRef& ref = path->ref;
  Job* job = scanning_.Readable(&sessions_, event.caller, ref.job, event.deadline, event,
                                /*scan=*/true);
  if (job == nullptr) return;
  if ((!job->owner->owned || standing_.Newest(*job) == nullptr) &&
      cluster_->verdicts().Await(event.caller, *job, event.deadline, event)) {
    return;
  }
  if (!job->owner->owned) {
    const bool unread = options_.storage && !job->scan->Known();
    return out_.Answer(
        request, unread ? absl::UnavailableError(absl::StrCat(
                              "job: ", ref.job, " is not in memory, and storage cannot be read: ",
                              job->scan->problem.message()))
                        : absl::NotFoundError(absl::StrCat("job: ", ref.job, " is not known")));
  }
  if (!path->names_step) return ListCheckpoints(event, *job, limit);
  ListObjects(event, *job, ref, limit);
}

void Finding::ListJobs(const event::List& event, size_t limit) {
  if (sessions_.Of(event.caller) == nullptr) return;
  reply::List list;
  for (auto at = jobs_.all().upper_bound(event.cursor); at != jobs_.all().end(); ++at) {
    const Job& job = *at->second;
    if (!job.owner->owned || !Jobs::CheckAccess(job, event.caller).ok()) continue;
    if (list.jobs.size() == limit) {
      list.next_cursor = list.jobs.back();
      break;
    }
    list.jobs.push_back(job.name);
  }
  out_.Answer(event.caller.request, Body(std::move(list)));
}

void Finding::ListCheckpoints(const event::List& event, const Job& job, size_t limit) {
  AskAgain(job);
  const RequestId request = event.caller.request;
  const auto& all = job.steps->all;
  auto at = all.begin();
  if (!event.cursor.empty()) {
    const std::vector<std::string> cursor = absl::StrSplit(event.cursor, '.');
    CheckpointId after;
    if (cursor.size() != 3 || !absl::SimpleAtoi(cursor[0], &after.step) ||
        !absl::SimpleAtoi(cursor[1], &after.attempt) ||
        !absl::SimpleAtoi(cursor[2], &after.revision)) {
      return out_.Answer(request, absl::InvalidArgumentError("cursor: not one that ls gave"));
    }
    at = all.upper_bound(after);
  }
  reply::List list;
  for (; at != all.end(); ++at) {
    if (list.checkpoints.size() == limit) {
      const CheckpointKey& last = list.checkpoints.back().key;
      list.next_cursor = absl::StrCat(last.step, ".", last.attempt, ".", last.revision);
      break;
    }
    list.checkpoints.push_back(describing_.InfoOf(*at->second));
  }
  out_.Answer(request, Body(std::move(list)));
}

void Finding::ListObjects(const event::List& event, const Job& job, const CheckpointRef& ref,
                          size_t limit) {
  const RequestId request = event.caller.request;
  Checkpoint* checkpoint = describing_.ForShow(job, ref);
  if (checkpoint == nullptr) return out_.Answer(request, describing_.Resolve(job, ref).status());
  if (tables_.Await(event.caller, checkpoint, event.deadline, event)) return;
  if (!checkpoint->content->complete &&
      cluster_->loads().AwaitAll(event.caller, *checkpoint, event.deadline, event)) {
    return;
  }
  reply::List list;
  for (ObjectRef at = ObjectAfter(*checkpoint, event.cursor); at;
       at = ObjectAfter(*checkpoint, at.name())) {
    if (list.objects.size() == limit) {
      list.next_cursor = list.objects.back().name;
      break;
    }
    list.objects.push_back(describing_.InfoOf(at, /*with_crcs=*/false));
  }
  const Loads& loads = cluster_->loads();
  if (!loads.problem().ok()) return out_.Answer(request, loads.problem());
  if (loads.without_room().empty()) return out_.Answer(request, Body(std::move(list)));
  out_.Answer(request, Body(reply::Elsewhere{loads.without_room(),
                                             describing_.Elsewhere(*checkpoint), std::move(list)}));
}

// --- wait

void Finding::On(const event::Wait& event) {
  if (sessions_.Of(event.caller) == nullptr) return;
  const RequestId request = event.caller.request;
  const Status valid = ValidateJob(event.ref.job);
  if (!valid.ok()) return out_.Answer(request, valid);
  Job* job = jobs_.FindOrMake(event.ref.job);
  // It hears of what a look brings all the same.
  const bool writer_is_here = scanning_.WriterIsHere(*job);
  if (!writer_is_here && scanning_.Await(event.caller, job, event.deadline, event)) return;
  const Status access = Jobs::CheckAccess(*job, event.caller);
  if (!access.ok()) return out_.Answer(request, access);
  if (writer_is_here) scanning_.LookAhead(job);
  event::Wait wait = event;
  if (wait.after >= 0 && !wait.after_head.has_value())
    wait.after_head = standing_.Head(*job).number;
  std::optional<StatusOr<Body>> verdict = Evaluate(wait);
  if (verdict.has_value()) return out_.Answer(request, *std::move(verdict));
  if (callers_.Park(this, event.caller, job->name, event.deadline, wait)) {
    job->waits.Edit().requests.insert(request);
    cluster_->verdicts().Follow(job->name);
  }
}

// A step that is not the newest, nor the target, is copied no more once a later one has its replicas.
bool Finding::PassedOver(const Checkpoint& checkpoint) const {
  const Job& job = *checkpoint.job;
  const JobVerdictHeard& verdict = *job.verdict;
  const CheckpointId id = checkpoint.Id();
  if (!verdict.protect.has_value() || verdict.target == id) return false;
  const auto place = [](const CheckpointId& of) {
    return std::tuple(of.attempt, of.step, of.revision);
  };
  return place(*verdict.protect) > place(id) && standing_.Newest(job) != &checkpoint;
}

std::optional<StatusOr<Body>> Finding::Evaluate(const event::Wait& wait) const {
  const Job& job = *jobs_.Find(wait.ref.job);
  const int replicas = cluster_->members().ReplicasOf(job.owner->policy);
  const Status level = CheckLevel(wait.level, options_.storage, replicas);
  if (!level.ok()) return StatusOr<Body>(level);
  Status never;
  const Checkpoint* checkpoint = Meant(wait, job, &never);
  if (!never.ok()) return StatusOr<Body>(never);
  if (checkpoint == nullptr || !checkpoint->Complete()) return std::nullopt;
  const Files& files = *checkpoint->files;
  // One that storage has, which is away, may come back with it.
  if (files.unconfirmed && wait.level == Level::kPersisted) return std::nullopt;
  if (!checkpoint->Obtainable()) return StatusOr<Body>(NoGoodCopy(*checkpoint));
  if (wait.level == Level::kReplicated && checkpoint->elsewhere->replicas < replicas) {
    if (PassedOver(*checkpoint)) {
      return StatusOr<Body>(NeverReached(
          "level: REPLICATED can never be reached: ", checkpoint->key.DebugString(),
          " is superseded by step ", job.verdict->protect->step, ", which has its replicas"));
    }
    const std::string refusal = cluster_->RefusalOf(job);
    if (refusal.empty()) return std::nullopt;
    return StatusOr<Body>(NeverReached("level: REPLICATED cannot be reached now: ", refusal));
  }
  if (wait.level == Level::kPersisted && !files.persisted && !checkpoint->elsewhere->stored) {
    if (files.parked && files.owes) return StatusOr<Body>(CannotPersist(*checkpoint));
    if (files.owes || files.persisting || files.unconfirmed) return std::nullopt;
    if (files.deleted) {
      return StatusOr<Body>(NeverReached(
          "level: PERSISTED can never be reached: the files of ", checkpoint->key.DebugString(),
          " were deleted; ask to persist it, and they are written again"));
    }
    if (job.asked->contains(checkpoint->Id())) return std::nullopt;  // others write its parts
    return StatusOr<Body>(
        NeverPersisted(*checkpoint, files.skipped || standing_.Newest(job) != checkpoint));
  }
  if (GoesByOthers(wait.level, *checkpoint) && !cluster_->verdicts().Fresh(job)) {
    return std::nullopt;
  }
  return StatusOr<Body>(Body(describing_.InfoOf(*checkpoint)));
}

bool Finding::GoesByOthers(Level level, const Checkpoint& checkpoint) {
  if (level == Level::kReplicated) return true;
  return !checkpoint.files->persisted &&
         (level == Level::kPersisted || !checkpoint.content->complete);
}

// A rollback leaves whoever waits for a greater step behind: another head wakes it, too.
const Checkpoint* Finding::After(const event::Wait& wait, const Job& job) const {
  if (const Checkpoint* next = standing_.Next(job, wait.after)) return next;
  const Checkpoint* newest = standing_.Newest(job);
  // Where there was nothing, nothing was gone back from.
  const bool another_head = wait.after_head != 0 && standing_.Head(job).number != wait.after_head;
  if (newest == nullptr || another_head) return newest;
  const bool saved_anew = wait.after_revision >= 0 && newest->key.step == wait.after &&
                          newest->key.revision > wait.after_revision;
  return saved_anew ? newest : nullptr;
}

const Checkpoint* Finding::Meant(const event::Wait& wait, const Job& job, Status* never) const {
  const CheckpointRef& ref = wait.ref;
  if (ref.step == kNoStep) return wait.after >= 0 ? After(wait, job) : standing_.Newest(job);
  const Checkpoint* checkpoint = describing_.ForShow(job, ref);
  const Attempt newest = job.attempts->newest();
  const bool removed =
      job.tombstones->removed.Forbids(ref.step, ref.attempt == 0 ? newest : ref.attempt);
  if (checkpoint == nullptr && removed) {
    *never = StepWasRemoved(job, ref.step);
    return nullptr;
  }
  if (ref.attempt != 0 && ref.attempt < newest &&
      (checkpoint == nullptr || !checkpoint->Complete())) {
    *never = NeverReached("attempt ", ref.attempt, " is superseded by ", newest,
                          " and can complete nothing more");
    return nullptr;
  }
  if (ref.attempt == 0 && checkpoint != nullptr && standing_.Abandoned(*checkpoint)) {
    return nullptr;  // the line may still get this step
  }
  return checkpoint;
}

void Finding::CheckWaits() {
  std::set<std::string> names = standing_.TakeWaitsToCheck();
  names.merge(std::exchange(deferred_, {}));
  for (; !names.empty(); names = standing_.TakeWaitsToCheck()) {
    for (const std::string& name : names) {
      const Job* job = jobs_.Find(name);
      if (job == nullptr) continue;
      if (scanning_.IsMerging(*job)) {
        deferred_.insert(name);  // half of what storage has is no answer
      } else {
        CheckWaits(*job);
      }
    }
  }
}

void Finding::CheckWaits(const Job& job) {
  const std::set<RequestId> waits = job.waits->requests;
  for (RequestId request : waits) {
    const Parked* parked = callers_.Find(request);
    if (parked == nullptr) continue;
    const auto& wait = std::get<event::Wait>(parked->event);
    const Status access = Jobs::CheckAccess(job, wait.caller);
    if (!access.ok()) {
      callers_.Answer(request, access);
      continue;
    }
    std::optional<StatusOr<Body>> verdict = Evaluate(wait);
    if (verdict.has_value()) callers_.Answer(request, *std::move(verdict));
  }
}

void Finding::Left(const Parked& parked) {
  if (Job* job = jobs_.Find(parked.job)) job->waits.Edit().requests.erase(parked.request);
}

void Finding::TimeUp(const Parked& parked) {
  const auto& wait = std::get<event::Wait>(parked.event);
  const std::string step =
      wait.ref.step == kNoStep ? std::string() : absl::StrCat(" step ", wait.ref.step);
  const Job* job = jobs_.Find(parked.job);
  const bool storage = wait.level == Level::kPersisted && job != nullptr;
  std::string why = storage ? job->files->problem : std::string();
  if (why.empty() && job != nullptr && !cluster_->verdicts().Fresh(*job)) {
    why = std::string(cluster_->verdicts().Missing(*job).message());
  }
  callers_.Answer(parked.request,
                  absl::DeadlineExceededError(absl::StrCat(
                      "wait: job ", parked.job, step, " did not reach ", LevelName(wait.level),
                      " by the deadline", why.empty() ? "" : ": ", why)));
}

std::string Finding::CheckInvariants(const Job& job) const {
  for (RequestId request : job.waits->requests) {
    if (!callers_.Contains(request)) {
      return absl::StrCat("job ", job.name, ": waits without a caller");
    }
  }
  return "";
}

}  // namespace cairn::engine
