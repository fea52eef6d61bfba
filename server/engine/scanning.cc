#include "server/engine/scanning.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace cairn::engine {
namespace {

Attempt NewestDecision(const JobAttempts& attempts) {
  return attempts.decisions.empty() ? 0 : attempts.decisions.rbegin()->first;
}

// A look at storage that is not older answers for it.
constexpr MonotonicNanos kViewAge = 2 * kNanosPerSecond;
// For so long a line record that cannot be made sense of is taken to be as it was.
constexpr MonotonicNanos kBrokenAge = 60 * kNanosPerSecond;
// What memory can do or answer alone waits this long for storage to have its say.
constexpr MonotonicNanos kStoragePatience = 2 * kNanosPerSecond;
// The same while a writer of the job lives here: what memory knows is hardly ever wrong then.
constexpr MonotonicNanos kLinePatience = kNanosPerSecond / 4;
// A call that would make its caller the owner of a job waits this long: storage may know whose it is.
constexpr MonotonicNanos kPatienceOfOwners = 30 * kNanosPerSecond;

// Who would save something; nullptr: the call is another.
const Caller* WriterOf(const Event& event) {
  if (const auto* create = std::get_if<event::Create>(&event)) return &create->caller;
  if (const auto* commit = std::get_if<event::Commit>(&event)) return &commit->caller;
  if (const auto* store = std::get_if<event::Store>(&event)) return &store->caller;
  return nullptr;
}

// Without a look at storage it would be half done, or half an answer.
bool NeedsStorage(const Event& event) {
  return std::holds_alternative<event::Use>(event) ||
         std::holds_alternative<event::Remove>(event) || std::holds_alternative<event::List>(event);
}

}  // namespace

Scanning::Scanning(const Options& options, const Mode& mode, const JournalRoom* journal,
                   Outbox* out, Callers* callers, Jobs* jobs, Attempts* attempts,
                   Persistence* persistence, Records* records, Merging* merging,
                   std::function<void(const Event&)> again)
    : options_(options),
      mode_(mode),
      journal_(*journal),
      out_(*out),
      callers_(*callers),
      jobs_(*jobs),
      attempts_(*attempts),
      persistence_(*persistence),
      records_(*records),
      merging_(*merging),
      again_(std::move(again)) {}

// --- asking, and waiting for the answer

bool Scanning::Await(const Caller& caller, Job* job, MonotonicNanos deadline, const Event& event,
                     bool can_do_without) {
  if (WriterIsHere(*job)) return AwaitLine(caller, job, deadline, event);
  return Await(caller, job, deadline, event, can_do_without, Fresh(*job));
}

bool Scanning::AwaitWhole(const Caller& caller, Job* job, MonotonicNanos deadline,
                          const Event& event) {
  const bool lately = job->scan->Known() && out_.now() - job->scan->read <= kViewAge;
  return Await(caller, job, deadline, event, /*can_do_without=*/false, lately);
}

bool Scanning::AwaitLine(const Caller& caller, Job* job, MonotonicNanos deadline,
                         const Event& event) {
  LookAhead(job);
  const JobScan& scan = *job->scan;
  const bool under_way = scan.line_asked.has_value() || scan.state == ScanState::kScanning;
  if (!under_way || line_gave_up_ || gave_up_) return false;
  const MonotonicNanos until = scan.line_asked.value_or(scan.started) + kLinePatience;
  deadline = std::min(deadline, until);
  if (out_.now() >= deadline) return false;
  if (callers_.Park(&line_waits_, caller, job->name, deadline, event)) {
    job->scan.Edit().waiting.insert(caller.request);
  }
  return true;
}

void Scanning::LookAhead(Job* job) {
  if (!options_.storage || !mode_.storage_here) return;
  if (!job->scan->Known()) return Start(job);
  if (job->scan->line_asked.has_value() || out_.now() < job->scan->line_again) return;
  job->scan.Edit().line_asked = out_.now();
  out_.Do(action::ReadLineNumbers{job->name});
}

bool Scanning::AwaitLook(const Caller& caller, Job* job, MonotonicNanos deadline,
                         const Event& event, bool can_do_without) {
  const bool read_since = job->scan->Known() && job->scan->read >= out_.now();
  return Await(caller, job, deadline, event, can_do_without, read_since);
}

bool Scanning::Await(const Caller& caller, Job* job, MonotonicNanos deadline, const Event& event,
                     bool can_do_without, bool known) {
  if (!options_.storage || known || gave_up_) return false;
  if (FailedLately(*job)) return false;
  if (job->scan->Known()) job->scan.Edit().state = ScanState::kUnknown;
  Start(job);
  if (job->scan->state == ScanState::kFailed) return false;  // storage is away
  // What is being merged is there in a moment, and half of it is no answer.
  if (can_do_without && !merging_.Has(*job)) {
    // Storage that hangs costs this long once, not each caller anew.
    const MonotonicNanos until =
        job->scan->started + (MayOwn(*job, caller) ? kPatienceOfOwners : kStoragePatience);
    deadline = std::min(deadline, until);
    if (out_.now() >= deadline) return false;
  }
  if (callers_.Park(this, caller, job->name, deadline, event)) {
    job->scan.Edit().waiting.insert(caller.request);
  }
  return true;
}

bool Scanning::Fresh(const Job& job) const {
  if (!job.scan->Known()) return false;
  const MonotonicNanos read = WriterIsHere(job) ? job.scan->line_read : job.scan->read;
  return out_.now() - read <= kViewAge;
}

bool Scanning::WriterIsHere(const Job& job) const {
  const JobAttempts& attempts = *job.attempts;
  if (job.scan->read == 0 || attempts.begun.empty()) return false;
  const auto& [newest, attempt] = *attempts.begun.rbegin();
  // Else somebody else is about to go on, or already does.
  const bool nothing_ahead = newest == attempts.newest_recorded() && newest == attempts.fence() &&
                             newest >= NewestDecision(attempts);
  return nothing_ahead && !attempt.sessions.empty();
}

bool Scanning::FailedLately(const Job& job) const {
  return job.scan->state == ScanState::kFailed && out_.now() < job.scan->again;
}

void Scanning::Start(Job* job) {
  if (!options_.storage || job->scan->Known() || FailedLately(*job)) return;
  if (job->scan->state == ScanState::kScanning) return;
  JobScan& scan = job->scan.Edit();
  if (!mode_.storage_here && !mode_.storage_problem.empty()) {
    jobs_.MayForget(job->name);
    return StorageLeft(job);
  }
  scan.state = ScanState::kScanning;
  scan.started = out_.now();
  if (mode_.storage_here) Ask(job);
}

void Scanning::Look(Job* job) {
  if (!job->scan->Known() || !mode_.storage_here) return;
  job->scan.Edit().state = ScanState::kUnknown;
  Start(job);
}

void Scanning::LookFromNow(Job* job) {
  JobScan& scan = job->scan.Edit();
  if (scan.state == ScanState::kScanning && scan.asked) {
    ++scan.stale;
    return Ask(job);
  }
  if (!mode_.storage_here) return;
  merging_.Drop(*job);
  scan.state = ScanState::kUnknown;  // it failed just now, perhaps: tried once more
  Start(job);
}

void Scanning::Ask(Job* job) {
  job->scan.Edit().asked = true;
  persistence_.LookBegins(job);
  out_.Do(action::ScanJob{job->name});
}

bool Scanning::MustBeRead(const Job& job) {
  return !Attempts::OriginsKnown(job) || !job.files->unconfirmed.empty();
}

void Scanning::StorageLeft(Job* job) {
  JobScan& scan = job->scan.Edit();
  if (scan.state == ScanState::kScanning && scan.asked) ++scan.stale;
  merging_.Drop(*job);
  scan.state = ScanState::kFailed;
  scan.asked = false;
  scan.problem = absl::UnavailableError(mode_.storage_problem);
  scan.again = kNever;
  if (!scan.waiting.empty()) Resume(job);
}

void Scanning::StorageCame(Job* job) {
  due_.erase({kNever, job->name});
  JobScan& scan = job->scan.Edit();
  if (scan.state == ScanState::kScanning) {
    if (!scan.asked && !merging_.Has(*job)) Ask(job);
    return;
  }
  const bool known = scan.state != ScanState::kUnknown;
  scan.state = ScanState::kUnknown;
  if (known || MustBeRead(*job) || !job->files->persisted.empty()) Start(job);
}

void Scanning::Insist(Job* job) {
  if (!options_.storage || job->scan->Known()) return;
  due_.emplace(FailedLately(*job) ? job->scan->again : out_.now(), job->name);
}

void Scanning::ReadDue() {
  while (!due_.empty() && due_.begin()->first <= out_.now()) {
    Job* job = jobs_.Find(due_.begin()->second);
    due_.erase(due_.begin());
    if (job == nullptr) continue;
    const MonotonicNanos again = job->files->look_again;
    if (again != 0 && again <= out_.now()) Look(job);
    Start(job);
  }
}

Job* Scanning::Readable(Sessions* sessions, const Caller& caller, const std::string& name,
                        MonotonicNanos deadline, const Event& event, bool scan) {
  if (sessions->Of(caller) == nullptr) return nullptr;
  Job* job = jobs_.Find(name);
  const bool others_may_know = options_.storage || !options_.ring.Alone();
  if (job == nullptr && others_may_know && !gave_up_) {
    const Status valid = ValidateJob(name);
    if (!valid.ok()) {
      out_.Answer(caller.request, valid);
      return nullptr;
    }
    job = jobs_.FindOrMake(name);
    scan = true;
  }
  if (job == nullptr) {
    out_.Answer(caller.request, absl::NotFoundError(absl::StrCat("job: ", name, " is unknown")));
    return nullptr;
  }
  if (scan && Await(caller, job, deadline, event)) return nullptr;
  const Status access = Jobs::CheckAccess(*job, caller);
  if (!access.ok()) {
    out_.Answer(caller.request, access);
    return nullptr;
  }
  return job;
}

void Scanning::Left(const Parked& parked) {
  if (Job* job = jobs_.Find(parked.job)) job->scan.Edit().waiting.erase(parked.request);
}

// Storage had its time; what can goes on with what memory knows.
void Scanning::TimeUp(const Parked& parked) {
  const Job* job = jobs_.Find(parked.job);
  const Caller* writer = WriterOf(parked.event);
  if (writer != nullptr && job != nullptr && job->scan->state == ScanState::kScanning &&
      out_.now() < job->scan->started + kPatienceOfOwners && MayOwn(*job, *writer)) {
    return callers_.Answer(
        parked.request, absl::UnavailableError(absl::StrCat("job: storage has not said yet whose ",
                                                            job->name, " is")));
  }
  if (job != nullptr && job->scan->state == ScanState::kScanning && NeedsStorage(parked.event)) {
    return callers_.Answer(parked.request,
                           absl::UnavailableError(absl::StrCat("the storage of job ", job->name,
                                                               " has not answered in time")));
  }
  GoOn(parked, &gave_up_);
}

bool Scanning::MayOwn(const Job& job, const Caller& caller) const {
  return !job.owner->owned && !options_.Unlimited(caller.uid);
}

void Scanning::GoOn(const Parked& parked, bool* gave_up) {
  const std::unique_ptr<Parked> gone = callers_.Unpark(parked.request);
  *gave_up = true;
  again_(gone->event);
  *gave_up = false;
}

// --- the answer

bool Scanning::On(const event::JobScanned& event) {
  Job* job = jobs_.Find(event.job);
  if (job == nullptr) return false;
  if (job->scan->stale > 0) {  // they come in the order in which they were asked for
    --job->scan.Edit().stale;
    jobs_.MayForget(job->name);
    return false;
  }
  if (job->scan->state != ScanState::kScanning || !job->scan->asked) return false;
  jobs_.MayForget(job->name);
  JobScan& scan = job->scan.Edit();
  const bool in_part = std::exchange(scan.merging, true);  // another one was dropped
  scan.asked = false;
  if (scan.read == 0) scan.unread_up_to = std::numeric_limits<Step>::max();
  const Status room = event.stored.ok() ? CheckJournal(event) : absl::OkStatus();
  if (event.stored.ok() && room.ok()) scan.listed = event.stored->line;
  if (absl::IsNotFound(event.stored.status())) {
    records_.Scanned(*job, {}, {});  // decisions that stood there are owed once more
    persistence_.OriginsAreGone(job);
  }
  return merging_.Begin(job, event, room, in_part);
}

Scanning::Taken Scanning::TakeIn(int* budget) {
  std::optional<Merging::Ended> ended = merging_.Some(budget);
  if (!ended.has_value()) return {};
  Job* job = jobs_.Find(ended->job);
  jobs_.MayForget(job->name);
  JobScan& scan = job->scan.Edit();
  scan.merging = ended->in_part;
  const bool none = absl::IsNotFound(ended->status);
  Status status = none ? absl::OkStatus() : ended->status;
  scan.unread_up_to = status.ok() ? kNoStep : std::numeric_limits<Step>::max();
  const bool told = status.ok() && !none;
  if (told) {
    status = CheckAllRead(*ended->reading);
    for (const Unread& unread : ended->reading->unread) {
      const Step step = unread.step == kNoStep ? std::numeric_limits<Step>::max() : unread.step;
      scan.unread_up_to = std::max(scan.unread_up_to, step);
    }
  }
  const Taken taken{job, ended->reading.ok(), ended->newer_attempt};
  const int64_t storage_unix_ms = told ? ended->reading->now_unix_ms : 0;
  out_.DestroyLater(std::move(ended->reading));
  if (!status.ok()) {
    Failed(job, status);
    return taken;
  }
  scan.state = ScanState::kScanned;
  scan.wait = 0;
  // What was persisted while it was being merged is not in it.
  scan.read = job->files->persisted_at >= ended->begun ? ended->begun : out_.now();
  job->Touch();  // a finished job's latest may make room now
  scan.line_read = scan.read;
  scan.line_again = scan.read + kViewAge;
  scan.read_unix_ms = out_.UnixMillis();
  scan.storage_unix_ms = storage_unix_ms;
  if (job->files->look_again != 0) due_.emplace(job->files->look_again, job->name);
  attempts_.SettleOrigins(job);
  return taken;
}

void Scanning::On(const event::LineNumbersRead& event) {
  Job* job = jobs_.Find(event.job);
  if (job == nullptr) return;
  jobs_.MayForget(job->name);
  JobScan& scan = job->scan.Edit();
  scan.line_asked.reset();
  scan.line_again = out_.now() + kViewAge;
  const bool none = absl::IsNotFound(event.numbers.status());  // nothing of the job is stored
  if (event.numbers.ok() || none) scan.line_read = out_.now();
  const JobAttempts& attempts = *job->attempts;
  // What stood there at the last reading, too, and could not be made sense of, is not read again soon.
  const bool lately = out_.now() - scan.read < kBrokenAge;
  const LineNumbers listed = lately ? scan.listed : LineNumbers{};
  if (event.numbers.ok() &&
      (event.numbers->published > std::max(attempts.newest_recorded(), listed.published) ||
       event.numbers->decided > std::max(NewestDecision(attempts), listed.decided))) {
    Look(job);
  }
  if (scan.state != ScanState::kScanning) Resume(job);
}

Status Scanning::CheckJournal(const event::JobScanned& event) const {
  const Job* job = jobs_.Find(event.job);
  if (job == nullptr || !event.stored.ok()) return absl::OkStatus();
  return journal_.CheckStored(job->name, Merging::JournalCostOf(*job, event.stored));
}

// What was found counts. That something was not found says nothing.
void Scanning::Failed(Job* job, const Status& why) {
  JobScan& scan = job->scan.Edit();
  const bool said = scan.wait > 0 && scan.problem == why;  // and not read since
  scan.state = ScanState::kFailed;
  scan.problem = why;
  scan.wait = std::clamp(scan.wait * 2, options_.persist_retry_min, options_.persist_retry_max);
  scan.again = out_.now() + scan.wait;
  if (!said) {
    out_.Log(Severity::kWarning, absl::StrCat("job ", job->name, " in storage: ", why.message()));
  }
  if (MustBeRead(*job)) Insist(job);
}

void Scanning::Resume(Job* job) {
  const std::set<RequestId> waiting = std::exchange(job->scan.Edit().waiting, {});
  for (RequestId request : waiting) {
    const std::unique_ptr<Parked> parked = callers_.Unpark(request);
    if (parked != nullptr) again_(parked->event);
  }
}

}  // namespace cairn::engine
