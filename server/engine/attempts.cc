// One file: nothing else changes what is known of a job's attempts, and what storage tells of them is read
// beside what they did here.
#include "server/engine/attempts.h"

#include <algorithm>
#include <limits>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "server/engine/restored.h"

namespace cairn::engine {
namespace {

constexpr size_t kKeptRefusals = 128;
// How far above clock and known attempts a number may be. Who brings a greater one would use the job's
// numbers up.
constexpr Attempt kAheadMs = 3'600'000;

const AttemptState* FindBegun(const Job& job, Attempt attempt) {
  const auto at = job.attempts->begun.find(attempt);
  return at == job.attempts->begun.end() ? nullptr : &at->second;
}

// How many writers the step has: of one that nobody has entered as the call says, and that may leave it out.
int32_t WritersOf(const AttemptState& attempt, Step step, int32_t world_size,
                  const Session& session) {
  const auto world = attempt.worlds.find(step);
  if (world != attempt.worlds.end()) return world->second.writers;
  return world_size != 0 ? world_size : session.world_size;
}

// The rank of the session's process, which saves a step of so many writers as `writer`.
Writer RankOf(Writer writer, int32_t world_size, const Session& session) {
  const bool alone = world_size == 1;
  const bool as_at_hello = !alone && (world_size == session.world_size || session.writer < 0);
  return as_at_hello ? writer : std::max(session.writer, 0);
}

}  // namespace

// --- what an attempt may do

Status Attempts::CheckFence(const Job& job, Attempt attempt, Attempt* superseded_by) {
  const Attempt fence = job.attempts->fence();
  if (attempt >= fence) return absl::OkStatus();
  *superseded_by = fence;
  return absl::FailedPreconditionError(
      absl::StrCat("attempt: ", attempt, " of job ", job.name, " is superseded by ",
                   fence == job.attempts->newest() ? "" : "`use` ", fence));
}

Status Attempts::CheckBound(const Job& job, Attempt attempt) const {
  // The number may have been chosen on another node, by its clock.
  const Attempt known = std::max({job.attempts->greatest, job.attempts->newest(),
                                  Attempt{out_.UnixMillis()}, Attempt{ring_clock_()}});
  if (attempt <= known || attempt - known <= kAheadMs) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("attempt: ", attempt, " of job ", job.name, " is more than ", kAheadMs,
                   " above ", known, ", the greatest that is known or the clock in milliseconds"));
}

Status Attempts::CheckProcess(const Job& job, const PartKey& part, int32_t world_size,
                              const Session& session) const {
  const AttemptState* attempt = FindBegun(job, part.checkpoint.attempt);
  if (attempt == nullptr) return absl::OkStatus();
  const auto world = attempt->worlds.find(part.checkpoint.step);
  const bool known = world != attempt->worlds.end();
  if ((known ? world->second.writers : world_size) == 1) {
    return known ? CheckOwner(job, part, world->second, session) : absl::OkStatus();
  }
  const int32_t writers = WritersOf(*attempt, part.checkpoint.step, world_size, session);
  const auto process = attempt->Find({writers, part.writer});
  if (process == attempt->processes.end() || process->second.process == session.process) {
    return absl::OkStatus();
  }
  const int32_t pid = process->second.pid;
  return absl::AlreadyExistsError(absl::StrCat(
      "writer: ", part.writer, " of attempt ", part.checkpoint.attempt, " of job ", job.name,
      " is another process", pid == 0 ? std::string() : absl::StrCat(", pid ", pid),
      "; a writer is one process for the life of its attempt"));
}

Status Attempts::CheckOwner(const Job& job, const PartKey& part, const StepWorld& world,
                            const Session& session) const {
  if (world.process.empty() || world.process == session.process) return absl::OkStatus();
  std::string pid;
  for (SessionId id : job.sessions->all) {
    const Session& other = *sessions_.Find(id);
    if (other.process == world.process) pid = absl::StrCat(", pid ", other.pid);
  }
  return absl::AlreadyExistsError(
      absl::StrCat("step: ", part.checkpoint.step, " of attempt ", part.checkpoint.attempt,
                   " of job ", job.name, " is saved by another process alone, of rank ", world.rank,
                   pid, "; a step of one writer belongs to the process that entered it first"));
}

Status Attempts::CheckOrigin(const Job& job, const CheckpointKey& key) {
  const AttemptState* attempt = FindBegun(job, key.attempt);
  const auto decided = job.attempts->decisions.find(key.attempt);
  const Lineage* lineage = attempt != nullptr                         ? &attempt->lineage
                           : decided != job.attempts->decisions.end() ? &decided->second.lineage
                                                                      : nullptr;
  if (lineage == nullptr || key.step > lineage->step()) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("step: ", key.step, " of job ", job.name, " is not above what attempt ",
                   key.attempt, " goes on from, ", OriginText(*lineage),
                   "; a new attempt that is to go back further says so with resume"));
}

Status Attempts::CheckWorld(const Job& job, const PartKey& part, int32_t world_size) {
  const AttemptState* attempt = FindBegun(job, part.checkpoint.attempt);
  if (attempt == nullptr) return absl::OkStatus();
  const auto world = attempt->worlds.find(part.checkpoint.step);
  if (world == attempt->worlds.end() || world->second.writers == world_size) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat("world_size: ", world_size, ", but step ", part.checkpoint.step, " of attempt ",
                   part.checkpoint.attempt, " has world_size ", world->second.writers));
}

Status Attempts::CheckRefused(const Job& job, const CheckpointKey& key) {
  const AttemptState* attempt = FindBegun(job, key.attempt);
  if (attempt == nullptr) return absl::OkStatus();
  const auto refused = attempt->refused.find({key.step, key.revision});
  return refused == attempt->refused.end() ? absl::OkStatus() : refused->second;
}

const std::string* Attempts::FindDropped(const Job& job, const PartKey& part) {
  const CheckpointKey& key = part.checkpoint;
  const AttemptState* attempt = FindBegun(job, key.attempt);
  if (attempt == nullptr) return nullptr;
  const auto dropped = attempt->dropped.find({key.step, key.revision, part.writer});
  return dropped == attempt->dropped.end() ? nullptr : &dropped->second;
}

// --- what it does

Attempt Attempts::Choose(Job* job, int64_t unix_ms) {
  const Attempt known = std::max(job->attempts->greatest, job->attempts->fence());
  // Files may say any number.
  const Attempt next = known == std::numeric_limits<Attempt>::max() ? known : known + 1;
  const Attempt chosen = std::max<Attempt>(unix_ms, next);
  job->attempts.Edit().greatest = chosen;
  return chosen;
}

void Attempts::Saw(Job* job, Attempt attempt) {
  if (attempt > job->attempts->greatest) job->attempts.Edit().greatest = attempt;
}

void Attempts::Decide(Job* job, Attempt number, Decision decision) {
  Saw(job, number);
  const auto before = job->attempts->decisions.find(number);
  if (before != job->attempts->decisions.end()) {
    decision.version = std::max(decision.version, before->second.version + 1);
  }
  records_.Owe({job->name, number, decision.kind, decision.lineage});
  out_.Say(
      fact::LineDecided{{job->name, number, decision.kind, decision.lineage}, decision.unix_ms});
  Remember(job, number, std::move(decision));
}

void Attempts::Remember(Job* job, Attempt number, Decision decision) {
  JobAttempts& attempts = job->attempts.Edit();
  attempts.decisions[number] = std::move(decision);
  if (attempts.decisions.size() > kKeptDecisions) {
    attempts.decisions.erase(attempts.decisions.begin());
  }
  ++attempts.line_version;
}

bool Attempts::Enter(Job* job, const PartKey& part, int32_t world_size, const Session& session) {
  const Attempt number = part.checkpoint.attempt;
  const Step step = part.checkpoint.step;
  const bool begins = !job->attempts->begun.contains(number);
  if (begins) {
    AttemptState attempt;
    attempt.attempt = number;
    attempt.unix_ms = out_.UnixMillis();
    attempt.begun_here = out_.now();
    attempt.first_step = step;
    const auto resumed = job->attempts->decisions.find(number);
    if (resumed != job->attempts->decisions.end()) {
      attempt.lineage = resumed->second.lineage;
    } else {
      const bool known = (!options_.storage || job->scan->Known()) && RingAnswered(*job);
      attempt.lineage = known ? standing_.LineageBelow(*job, step) : Lineage::OfUnknown();
    }
    JobAttempts& attempts = job->attempts.Edit();
    attempts.greatest = std::max(attempts.greatest, number);
    attempts.begun.emplace(number, std::move(attempt));
    attempts.elsewhere.erase(number);
    ++attempts.line_version;
  }
  AttemptState& attempt = job->attempts.Edit().begun.at(number);
  if (!attempt.journaled) Say(*job, &attempt);
  const bool alone = world_size == 1;  // whichever rank this is
  const Writer rank = RankOf(part.writer, world_size, session);
  if (!alone && attempt.Find({world_size, part.writer}) == attempt.processes.end()) {
    attempt.processes[{world_size, part.writer}] = {session.process, session.pid, rank};
    out_.Say(
        fact::WriterProcess{job->name, number, world_size, part.writer, session.process, rank});
  }
  attempt.sessions.insert(session.id);
  entered_[session.id].insert({job->name, number});
  sessions_.Entered(session.id, number);
  const Revision revision = part.checkpoint.revision;
  auto& reached = attempt.reached.try_emplace({session.process, rank}, kNoStep, 0).first->second;
  const bool moves = reached < std::pair(step, revision);
  if (moves) reached = {step, revision};
  const bool tries_anew = attempt.withdrawn.erase({step, revision, part.writer}) > 0;
  if (moves || tries_anew) TouchIncomplete(job, number);
  while (attempt.refused.size() > kKeptRefusals) attempt.refused.erase(attempt.refused.begin());
  return begins;
}

void Attempts::TakeStep(Job* job, const PartKey& part, int32_t world_size, const Session& session) {
  const auto& [job_name, step, number, revision] = part.checkpoint;
  const bool alone = world_size == 1;
  StepWorld& world = job->attempts.Edit().begun.at(number).worlds[step];
  if (world.writers != 0 && (!alone || !world.process.empty())) return;
  const Writer rank = RankOf(part.writer, world_size, session);
  world = alone ? StepWorld{world_size, session.process, rank} : StepWorld{world_size};
  out_.Say(fact::StepWorld{job_name, number, step, world_size, world.process, world.rank});
}

void Attempts::ForgetOlder(Job* job) {
  JobAttempts& attempts = job->attempts.Edit();
  const Attempt newest = attempts.newest();
  // Attempts that left nothing behind cut nothing off the line: they need not be remembered.
  for (auto at = attempts.begun.begin(); at != attempts.begun.end() && at->first != newest;) {
    at->second.dropped.clear();  // nothing of it is committed any more
    at->second.withdrawn.clear();
    // What it left in storage may not be known yet. When all of that is merged, this is done once more.
    const bool empty =
        at->second.checkpoints_at.empty() && at->second.sessions.empty() && !job->scan->merging;
    at = empty ? attempts.begun.erase(at) : std::next(at);
  }
  ++attempts.line_version;
}

void Attempts::Refuse(Job* job, const CheckpointKey& key, const Status& why) {
  job->attempts.Edit().begun.at(key.attempt).refused[{key.step, key.revision}] = why;
  TouchIncomplete(job, key.attempt);
}

void Attempts::Withdraw(const PartKey& part, int32_t world_size, const Session& session) {
  const CheckpointKey& key = part.checkpoint;
  Job* job = jobs_.Find(key.job);
  if (job == nullptr || job->attempts->begun.empty()) return;
  if (key.attempt != job->attempts->newest()) return;
  // One that has not entered the attempt is known by what it said at hello; but a part of the ranks numbers them anew.
  const AttemptState& attempt = job->attempts->begun.at(key.attempt);
  const int32_t writers = WritersOf(attempt, key.step, world_size, session);
  const bool entered = attempt.Find({writers, part.writer}) != attempt.processes.end();
  const bool renumbered = writers != session.world_size && session.writer >= 0;
  if (!entered && session.attempt != key.attempt) return;
  if (!entered && !renumbered && session.writer != part.writer) return;
  auto& withdrawn = job->attempts.Edit().begun.at(key.attempt).withdrawn;
  withdrawn.insert({key.step, key.revision, part.writer});
  if (withdrawn.size() > kKeptDropped) withdrawn.erase(withdrawn.begin());
  TouchIncomplete(job, key.attempt);
}

void Attempts::TouchIncomplete(Job* job, Attempt attempt) {
  for (const CheckpointId& id : job->steps->incomplete) {
    if (id.attempt == attempt) CheckpointOf(*job, id)->Touch();
  }
}

void Attempts::RememberDropped(const PartKey& part, const std::string& object) {
  const CheckpointKey& key = part.checkpoint;
  Job* job = jobs_.Find(key.job);
  if (job == nullptr || key.attempt != job->attempts->newest()) return;
  auto& dropped = job->attempts.Edit().begun.at(key.attempt).dropped;
  dropped[{key.step, key.revision, part.writer}] = object;
  if (dropped.size() > kKeptDropped) dropped.erase(dropped.begin());
}

void Attempts::ForgetDropped(const PartKey& part) {
  const CheckpointKey& key = part.checkpoint;
  Job* job = jobs_.Find(key.job);
  if (FindDropped(*job, part) == nullptr) return;
  job->attempts.Edit().begun.at(key.attempt).dropped.erase({key.step, key.revision, part.writer});
}

void Attempts::CheckpointMade(Job* job, const CheckpointKey& key) {
  JobAttempts& attempts = job->attempts.Edit();
  const auto [at, fresh] = attempts.begun.try_emplace(key.attempt);
  if (fresh) {
    at->second.attempt = key.attempt;
    attempts.elsewhere.erase(key.attempt);
    ++attempts.line_version;
  }
  ++at->second.checkpoints_at[key.step];
}

void Attempts::CheckpointGone(Job* job, const CheckpointKey& key) {
  AttemptState& attempt = job->attempts.Edit().begun.at(key.attempt);
  const auto at_step = attempt.checkpoints_at.find(key.step);
  if (--at_step->second > 0) return;
  attempt.checkpoints_at.erase(at_step);
  attempt.worlds.erase(key.step);
}

std::set<std::pair<std::string, Attempt>> Attempts::EndSession(SessionId session) {
  Notice(*sessions_.Find(session), /*ends=*/true);
  std::set<std::pair<std::string, Attempt>> left_alone;
  const auto entered = entered_.find(session);
  if (entered == entered_.end()) return left_alone;
  for (const auto& [name, number] : entered->second) {
    Job* job = jobs_.Find(name);
    if (job == nullptr || !job->attempts->begun.contains(number)) continue;
    AttemptState& attempt = job->attempts.Edit().begun.at(number);
    attempt.sessions.erase(session);
    if (attempt.sessions.empty()) left_alone.insert({name, number});
  }
  entered_.erase(entered);
  return left_alone;
}

void Attempts::Notice(const Session& session, bool ends) {
  Job* job = jobs_.Find(session.job);
  if (job == nullptr || job->attempts->begun.empty()) return;
  if (ends && HasLiveSession(*job, session.process, session.id)) return;
  const Attempt newest = job->attempts->newest();
  std::set<WorldWriter> ended = job->attempts->begun.at(newest).ended;
  for (const auto& [writer, process] : job->attempts->begun.at(newest).processes) {
    if (process.process != session.process) continue;
    ends ? (void)ended.insert(writer) : (void)ended.erase(writer);
  }
  if (ended == job->attempts->begun.at(newest).ended) return;
  job->attempts.Edit().begun.at(newest).ended = std::move(ended);
  TouchIncomplete(job, newest);
}

bool Attempts::HasLiveSession(const Job& job, const ProcessToken& process,
                              SessionId besides) const {
  const std::set<SessionId>& all = job.sessions->all;
  return std::any_of(all.begin(), all.end(), [&](SessionId id) {
    return id != besides && sessions_.Find(id)->process == process;
  });
}

// --- what storage tells

void Attempts::Learn(Job* job, Attempt number, const AttemptLine& shown, int64_t unix_ms) {
  Saw(job, number);
  const auto at = job->attempts->begun.find(number);
  if (at == job->attempts->begun.end()) {
    AttemptState attempt;
    attempt.attempt = number;
    attempt.lineage = shown.lineage;
    attempt.first_step = shown.first;
    attempt.unix_ms = unix_ms;
    if (AmongNewest(*job, number)) Say(*job, &attempt);
    JobAttempts& attempts = job->attempts.Edit();
    attempts.begun.emplace(number, std::move(attempt));
    attempts.elsewhere.erase(number);
    ++attempts.line_version;
    return;
  }
  if (at->second.lineage.open && !shown.lineage.Unknown() && at->second.lineage != shown.lineage) {
    SetOrigin(job, number, shown.lineage);
  }
}

void Attempts::OriginRecorded(Job* job, Attempt attempt, int64_t unix_ms) {
  const auto at = job->attempts->begun.find(attempt);
  if (at == job->attempts->begun.end() || at->second.recorded_unix_ms == unix_ms) return;
  job->attempts.Edit().begun.at(attempt).recorded_unix_ms = unix_ms;
}

void Attempts::Adopt(Job* job, const LineRecord& record) {
  if (record.kind != LineRecordKind::kOrigin) {
    const auto decided = job->attempts->decisions.find(record.number);
    if (decided == job->attempts->decisions.end() || decided->second.lineage == record.lineage) {
      return;
    }
    Decision decision = decided->second;
    decision.lineage = record.lineage;
    out_.Say(fact::LineDecided{record, decision.unix_ms});
    return Remember(job, record.number, std::move(decision));
  }
  Saw(job, record.number);  // all its checkpoints may be gone, and its number is used up
  const auto at = job->attempts->begun.find(record.number);
  if (at == job->attempts->begun.end()) {
    // Each reading tells of all that ever published, most of them known or forgotten.
    const std::map<Attempt, Lineage>& kept = job->attempts->elsewhere;
    if (kept.size() >= kKeptDecisions && record.number < kept.begin()->first) return;
    if (const auto known = kept.find(record.number);
        known != kept.end() && known->second == record.lineage) {
      return;
    }
    std::map<Attempt, Lineage>& elsewhere = job->attempts.Edit().elsewhere;
    elsewhere[record.number] = record.lineage;
    if (elsewhere.size() > kKeptDecisions) elsewhere.erase(elsewhere.begin());
    return;
  }
  if (at->second.lineage == record.lineage) return;
  SetOrigin(job, record.number, record.lineage);
}

void Attempts::Learn(Job* job, const LineRecord& record, int64_t unix_ms) {
  Saw(job, record.number);
  const auto& decisions = job->attempts->decisions;
  if (decisions.contains(record.number)) {
    // Its file was there first.
    if (record.kind == LineRecordKind::kUse) Adopt(job, record);
    return;
  }
  if (decisions.size() >= kKeptDecisions && record.number < decisions.begin()->first) return;
  Decide(job, record.number, {record.kind, record.lineage, unix_ms});
}

bool Attempts::RingAnswered(const Job& job) const {
  return options_.ring.Alone() || (job.verdict->heard && job.verdict->final);
}

void Attempts::SettleOrigins(Job* job) {
  if (!RingAnswered(*job)) return;
  std::vector<Attempt> open;
  for (const auto& [number, attempt] : job->attempts->begun) {
    if (attempt.lineage.open) open.push_back(number);
  }
  // From the oldest on: a later one's lineage may end in an older one's.
  for (const Attempt number : open) {
    Lineage resolved = standing_.Resolved(*job, number);
    const bool settled = !resolved.open;
    SetOrigin(job, number, resolved);
    if (settled) {
      records_.Owe({job->name, number, LineRecordKind::kOrigin, std::move(resolved)});
    }
  }
}

bool Attempts::OriginsKnown(const Job& job) {
  const auto& begun = job.attempts->begun;
  return std::none_of(begun.begin(), begun.end(),
                      [](const auto& attempt) { return attempt.second.lineage.open; });
}

void Attempts::SetOrigin(Job* job, Attempt attempt, Lineage lineage) {
  JobAttempts& attempts = job->attempts.Edit();
  AttemptState& state = attempts.begun.at(attempt);
  state.lineage = std::move(lineage);
  ++attempts.line_version;
  if (state.journaled || HasMemory(*job, state)) Say(*job, &state);
}

void Attempts::Say(const Job& job, AttemptState* attempt) {
  attempt->journaled = true;
  out_.Say(fact::AttemptBegun{job.name, attempt->attempt, attempt->first_step, attempt->lineage,
                              attempt->unix_ms});
}

bool Attempts::AmongNewest(const Job& job, Attempt number) {
  size_t above = 0;
  const auto& begun = job.attempts->begun;
  for (auto at = begun.rbegin(); at != begun.rend() && at->first > number; ++at) {
    if (++above == kJournaledLives) return false;
  }
  return true;
}

bool Attempts::HasMemory(const Job& job, const AttemptState& attempt) {
  for (const auto& [step, count] : attempt.checkpoints_at) {
    for (const Checkpoint* checkpoint : CheckpointsAt(job, step)) {
      if (checkpoint->key.attempt == attempt.attempt && checkpoint->InMemory()) return true;
    }
  }
  return false;
}

bool Attempts::InSnapshot(const Job& job, const AttemptState& attempt) {
  const bool told =
      attempt.journaled && (!attempt.sessions.empty() || AmongNewest(job, attempt.attempt));
  return told || HasMemory(job, attempt);
}

// --- recovery

void Attempts::Restore(const Restored& restored) {
  for (const auto& [id, fact] : restored.attempts) {
    Job* job = jobs_.FindOrMake(id.first);
    JobAttempts& attempts = job->attempts.Edit();
    AttemptState& attempt = attempts.begun[id.second];
    attempt.attempt = id.second;
    attempt.first_step = fact.first_step;
    attempt.lineage = fact.lineage;
    attempt.unix_ms = fact.unix_ms;
    attempt.journaled = true;
    ++attempts.line_version;
    Saw(job, id.second);
  }
  for (const auto& [id, process] : restored.processes) {
    const auto& [name, number, writer] = id;
    Job* job = jobs_.FindOrMake(name);
    if (!job->attempts->begun.contains(number)) continue;
    job->attempts.Edit().begun.at(number).processes[writer] = process;
  }
  for (const auto& [id, world] : restored.worlds) {
    const auto& [name, number, step] = id;
    Job* job = jobs_.FindOrMake(name);
    if (!job->attempts->begun.contains(number)) continue;
    job->attempts.Edit().begun.at(number).worlds[step] = {world.world_size, world.process,
                                                          world.rank};
  }
  for (const auto& [id, decided] : restored.decisions) {
    Job* job = jobs_.FindOrMake(id.first);
    Saw(job, id.second);
    records_.Owe(decided.record);
    Remember(job, id.second, {decided.record.kind, decided.record.lineage, decided.unix_ms});
  }
}

// A session is a writer of the attempt that it has said to save in, and of those that know its process.
// One that only reads is none, though its process may have saved in another session.
void Attempts::RestoreSessions() {
  for (const auto& [name, job] : jobs_.all()) {
    if (job->sessions->all.empty()) continue;
    for (auto& [number, attempt] : job->attempts.Edit().begun) {
      absl::flat_hash_set<absl::string_view> alone;
      for (const auto& [step, world] : attempt.worlds) alone.insert(world.process);
      for (SessionId id : job->sessions->all) {
        const Session& session = *sessions_.Find(id);
        if (session.writer < 0) continue;
        bool wrote =
            (session.saves && session.attempt == number) || alone.contains(session.process);
        for (auto& [writer, process] : attempt.processes) {
          if (process.process != session.process) continue;
          process.pid = session.pid;
          wrote = true;
        }
        if (!wrote) continue;
        attempt.sessions.insert(id);
        entered_[id].insert({name, number});
      }
    }
  }
}

void Attempts::RestoreReached() {
  for (const auto& [name, job] : jobs_.all()) {
    if (!job->attempts->begun.empty()) {
      AttemptState& newest = job->attempts.Edit().begun.rbegin()->second;
      for (const auto& [writer, process] : newest.processes) {
        if (!HasLiveSession(*job, process.process)) newest.ended.insert(writer);
      }
    }
    for (const auto& [id, checkpoint] : job->steps->all) {
      AttemptState& attempt = job->attempts.Edit().begun.at(id.attempt);
      const auto world = attempt.worlds.find(id.step);
      const bool alone = world != attempt.worlds.end() && world->second.writers == 1;
      for (const auto& [writer, part] : checkpoint->content->parts) {
        const auto run = attempt.Find({checkpoint->content->world_size, writer});
        if (!alone && run == attempt.processes.end()) continue;
        const auto seat =
            alone ? std::pair(world->second.process, world->second.rank) : run->second.Seat();
        auto& reached = attempt.reached.try_emplace(seat, kNoStep, 0).first->second;
        reached = std::max(reached, {id.step, id.revision});
      }
      if (!checkpoint->content->complete) checkpoint->Touch();
    }
    // The facts tell of every step since the last snapshot, also of those that are gone.
    for (auto& [number, attempt] : job->attempts.Edit().begun) {
      std::erase_if(attempt.worlds, [&known = attempt.checkpoints_at](const auto& world) {
        return !known.contains(world.first);
      });
    }
  }
}

void Attempts::Snapshot(const Job& job, Attempt number, const AttemptState& attempt,
                        std::vector<Fact>* facts) const {
  if (InSnapshot(job, attempt)) {
    facts->push_back(
        fact::AttemptBegun{job.name, number, attempt.first_step, attempt.lineage, attempt.unix_ms});
  }
  for (const auto& [id, object] : attempt.dropped) {
    const auto& [step, revision, writer] = id;
    facts->push_back(fact::ObjectDropped{{{job.name, step, number, revision}, writer}, object});
  }
}

void Attempts::SnapshotWriter(const Job& job, Attempt number, const WorldWriter& writer,
                              std::vector<Fact>* facts) const {
  const auto attempt = job.attempts->begun.find(number);
  if (attempt == job.attempts->begun.end()) return;
  const auto process = attempt->second.processes.find(writer);
  if (process == attempt->second.processes.end()) return;
  const auto& [token, pid, rank] = process->second;
  facts->push_back(
      fact::WriterProcess{job.name, number, writer.world_size, writer.writer, token, rank});
}

void Attempts::SnapshotWorld(const Job& job, Attempt number, Step step,
                             std::vector<Fact>* facts) const {
  const auto attempt = job.attempts->begun.find(number);
  if (attempt == job.attempts->begun.end()) return;
  const auto world = attempt->second.worlds.find(step);
  if (world == attempt->second.worlds.end()) return;
  const auto& [writers, process, rank] = world->second;
  facts->push_back(fact::StepWorld{job.name, number, step, writers, process, rank});
}

void Attempts::SnapshotDecisions(const Job& job, std::vector<Fact>* facts) const {
  for (const auto& [number, decision] : job.attempts->decisions) {
    facts->push_back(
        fact::LineDecided{{job.name, number, decision.kind, decision.lineage}, decision.unix_ms});
  }
}

std::string Attempts::CheckInvariants(const Job& job,
                                      const std::function<bool(const PartKey&)>& writes) const {
  for (const auto& [number, attempt] : job.attempts->begun) {
    const bool newest = number == job.attempts->newest();
    if (attempt.dropped.size() > (newest ? kKeptDropped : 0)) {
      return absl::StrCat("job ", job.name, " attempt ", number, ": too much is kept as dropped");
    }
    for (const auto& [step, world] : attempt.worlds) {
      if (attempt.checkpoints_at.contains(step)) continue;
      return absl::StrCat("job ", job.name, " attempt ", number, ": step ", step,
                          " is gone, and its world size is kept");
    }
    for (const auto& [writer, process] : attempt.processes) {
      if (newest && attempt.ended.contains(writer) == HasLiveSession(job, process.process)) {
        return absl::StrCat("job ", job.name, " attempt ", number, ": has writer ", writer.writer,
                            " of ", writer.world_size, " ended?");
      }
    }
    for (const auto& [id, object] : attempt.dropped) {
      const auto& [step, revision, writer] = id;
      const PartKey part{{job.name, step, number, revision}, writer};
      if (writes(part)) {
        return absl::StrCat(part.DebugString(), " is being written, but kept as dropped");
      }
    }
  }
  return "";
}

}  // namespace cairn::engine
