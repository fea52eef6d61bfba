#include "server/engine/home.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace cairn::engine {
namespace {

// Who asked is told of changes for so long; it asks again while it cares.
constexpr MonotonicNanos kAskersKept = 30 * kNanosPerSecond;
constexpr MonotonicNanos kWantAgain = kNanosPerSecond;
// Reports are asked for anew when they are so old, and count for so long. A member tells changes for 30 s.
constexpr MonotonicNanos kAskAnew = 12 * kNanosPerSecond;
constexpr MonotonicNanos kReportsCount = 25 * kNanosPerSecond;
// A verdict names each member that has reported and goes to each that has something of the job, so that with many
// members it is not said with each event. For a name in a copy so much time is left between two.
constexpr size_t kManyMembers = 32;
constexpr MonotonicNanos kForEachName = 1000;

MonotonicNanos BetweenVerdicts(size_t members) {
  const auto n = static_cast<MonotonicNanos>(members);
  return members > kManyMembers ? n * n * kForEachName : 0;
}

bool HoldsSomething(const Gathering& gathering, Rank rank) {
  const auto at = gathering.reports.find(rank);
  return at != gathering.reports.end() &&
         (!at->second.report.parts.empty() || !at->second.report.writers.empty());
}

// Who hears the verdict must know the lives that its checkpoints are of, and whose the job is.
void AddAttempts(const Gathering& gathering, JobVerdict* verdict) {
  for (const auto& [rank, heard] : gathering.reports) {
    const JobReport& report = heard.report;
    if (report.owned && !verdict->owned) {
      verdict->owned = true;
      verdict->owner_uid = report.owner_uid;
      verdict->owner_gid = report.owner_gid;
      verdict->policy = report.policy;
    }
    for (const auto& [number, attempt] : report.attempts) {
      const auto [at, fresh] = verdict->attempts.try_emplace(number, attempt);
      if (!fresh && at->second.lineage.open && !attempt.lineage.open) at->second = attempt;
    }
  }
}

}  // namespace

Home::Home(const Options& options, Outbox* out, const Members* members)
    : options_(options), out_(*out), members_(*members) {}

Home::Of& Home::Find(const std::string& job) {
  std::unique_ptr<Of>& of = jobs_[job];
  if (of == nullptr) {
    of = std::make_unique<Of>(job, RingShape::Of(options_.ring));
    for (const auto& [rank, member] : members_.others()) {
      if (!member.up || unheard_.contains(rank)) of->gathered.Silent(rank, true);
      if (unheard_.contains(rank)) of->questions[rank] = out_.NextId();
    }
    const auto record = records_.find(job);
    if (record != records_.end()) of->gathered.SetRecord(record->second);
    due_.insert(job);
  }
  return *of;
}

void Home::On(const MemberId& from, const ReportDelta& delta) {
  Of& of = Find(delta.job);
  due_.insert(delta.job);
  const std::optional<uint32_t> owner = owner_(delta.job);
  if (delta.owned && owner.has_value() && *owner != delta.owner_uid) {
    if (of.foreign.insert(from.rank).second) {
      out_.Log(Severity::kWarning, absl::StrCat("job=", delta.job, " is uid ", *owner,
                                                "'s here, and uid ", delta.owner_uid, "'s on rank ",
                                                from.rank, ": what that has of it does not count"));
    }
    ReportDelta nothing;
    nothing.job = delta.job;
    nothing.number = delta.number;
    nothing.answers = delta.answers;
    return Take(from, nothing, &of);
  }
  // What has changed since is not all that it has.
  if (of.foreign.erase(from.rank) > 0 && delta.after != 0) {
    of.reported.erase(from.rank);
    of.wanted.erase(from.rank);
    return;
  }
  Take(from, delta, &of);
}

void Home::Take(const MemberId& from, const ReportDelta& delta, Of* found) {
  Of& of = *found;
  if (of.gathered.Apply(from, delta)) {
    const auto question = of.questions.find(from.rank);
    if (question != of.questions.end() && delta.answers < question->second) return;
    if (question != of.questions.end()) of.questions.erase(question);
    of.reported[from.rank] = out_.now();
    // A late report of a member that does not answer any more makes it no living one.
    if (members_.Up(from.rank)) of.gathered.Silent(from.rank, false);
    return;
  }
  of.reported.erase(from.rank);
  of.wanted.erase(from.rank);
}

void Home::SetRecord(const std::string& job, const JobRecord& record) {
  records_[job] = record;
  const auto at = jobs_.find(job);
  if (at == jobs_.end()) return;
  at->second->gathered.SetRecord(record);
  due_.insert(job);
}

void Home::ForgetRecord(const std::string& job) {
  if (records_.erase(job) == 0) return;
  const auto at = jobs_.find(job);
  if (at == jobs_.end()) return;
  JobRecord none;
  none.job = job;
  at->second->gathered.SetRecord(none);
  due_.insert(job);
}

void Home::Ask(Rank who, const std::string& job, uint64_t question) {
  Of& of = Find(job);
  Of::Asked& asked = of.asked[who];
  asked = {out_.now(), std::max(asked.question, question)};
  // It took nothing from this node until it had met it; what was asked before is lost.
  if (!of.reported.contains(who)) of.wanted.erase(who);
  due_.insert(job);
}

// A member that holds nothing of the job does not report by itself.
void Home::WantReports(const std::string& job, Of* of) {
  for (const Rank rank : members_.all()) {
    const auto reported = of->reported.find(rank);
    const bool asked_lately =
        reported != of->reported.end() && out_.now() - reported->second < kAskAnew;
    if (asked_lately || !members_.Up(rank)) continue;
    MonotonicNanos& last = of->wanted[rank];
    if (last != 0 && out_.now() - last < kWantAgain) continue;
    last = out_.now();
    if (rank == members_.self()) {
      own_report_(job);
    } else {
      const auto question = of->questions.find(rank);
      out_.Do(action::Tell{
          rank, peer::ReportWanted{job, question == of->questions.end() ? 0 : question->second}});
    }
  }
}

JobVerdict Home::VerdictOf(const std::string&, Of* of) const {
  const std::set<Rank>& lost = members_.Lost();
  const bool final = std::all_of(members_.all().begin(), members_.all().end(), [&](Rank rank) {
    return (of->reported.contains(rank) && members_.Up(rank)) || lost.contains(rank);
  });
  of->gathered.SetFinal(final);
  JobVerdict verdict = of->gathered.Verdict();
  AddAttempts(of->gathered.gathering(), &verdict);
  return verdict;
}

void Home::Say(const std::string& job, Of* of) {
  const peer::SharedVerdict verdict = VerdictOf(job, of);
  std::set<Rank> to;
  for (const auto& [rank, said] : verdict->reports) {
    if (HoldsSomething(of->gathered.gathering(), rank)) to.insert(rank);
  }
  for (const auto& [rank, at] : of->asked) to.insert(rank);
  // The home deletes files by policy, whoever has written them.
  const bool deletes = options_.storage && verdict->policy.keep_last > 0;
  // And it writes the rows of the job, whoever has something of it.
  const bool records = options_.shared_catalog && members_.HomeOf(job) == members_.self();
  if (deletes || records) to.insert(members_.self());
  for (const Rank rank : to) {
    const auto asked = of->asked.find(rank);
    const uint64_t answers = asked == of->asked.end() ? 0 : asked->second.question;
    if (rank == members_.self()) {
      to_self_(*verdict, answers);
    } else if (members_.Up(rank)) {
      out_.Do(action::Tell{rank, peer::VerdictSaid{verdict, answers}});
    }
  }
}

void Home::DoubtWhoIsNotHeard() {
  const auto is_heard = [this](const Members::Member& member) {
    return !member.up || out_.now() - member.heard <= kHeardFor;
  };
  std::erase_if(unheard_, [&](Rank rank) { return is_heard(members_.others().at(rank)); });
  // Members are many, and this is asked with each event.
  if (out_.now() <= all_heard_until_) return;
  all_heard_until_ = out_.now() + kHeardFor;
  for (const auto& [rank, member] : members_.others()) {
    if (!is_heard(member)) {
      if (unheard_.insert(rank).second) Doubt({rank});
    } else if (member.up) {
      all_heard_until_ = std::min(all_heard_until_, member.heard + kHeardFor);
    }
  }
}

void Home::Doubt(const std::set<Rank>& ranks) {
  if (jobs_.empty()) return;
  const uint64_t question = out_.NextId();
  for (auto& [job, of] : jobs_) {
    for (const Rank rank : ranks) {
      of->gathered.Silent(rank, true);
      of->reported.erase(rank);
      of->wanted.erase(rank);
      of->questions[rank] = question;
    }
    due_.insert(job);
  }
}

void Home::DoubtOldReports() {
  for (auto& [job, of] : jobs_) {
    for (auto at = of->reported.begin(); at != of->reported.end();) {
      const auto& [rank, when] = *at;
      if (rank == members_.self() || out_.now() - when <= kReportsCount) {
        ++at;
        continue;
      }
      of->gathered.Silent(rank, true);
      of->questions[rank] = out_.NextId();
      due_.insert(job);
      at = of->reported.erase(at);
    }
  }
}

void Home::TimerWasLate() {
  std::set<Rank> others = members_.all();
  others.erase(members_.self());
  Doubt(others);
}

bool Home::Run(bool again) {
  DoubtWhoIsNotHeard();
  if (again) {
    DoubtOldReports();
    for (const auto& [job, of] : jobs_) due_.insert(job);
  }
  bool said = false;
  for (const std::string& job : std::exchange(due_, {})) {
    const auto at = jobs_.find(job);
    if (at == jobs_.end()) continue;
    Of& of = *at->second;
    std::erase_if(of.asked,
                  [&](const auto& asked) { return out_.now() - asked.second.at > kAskersKept; });
    if (again && of.asked.empty() && !MustTell(job, of)) {
      jobs_.erase(at);  // who asks, or reports something, begins it anew
      continue;
    }
    if (out_.now() < of.says_again) {
      due_.insert(job);  // with an event after that
      continue;
    }
    of.says_again = out_.now() + BetweenVerdicts(members_.all().size());
    WantReports(job, &of);
    Say(job, &of);
    said = true;
  }
  return said;
}

// Another member's to say; or there is nothing that anybody has of it.
bool Home::MustTell(const std::string& job, const Of& of) const {
  if (members_.HomeOf(job) != members_.self()) return false;
  const auto& reports = of.gathered.gathering().reports;
  return std::any_of(reports.begin(), reports.end(), [](const auto& heard) {
    const JobReport& report = heard.second.report;
    return !report.parts.empty() || !report.writers.empty() || !report.published.empty();
  });
}

std::optional<std::vector<peer::Place>> Home::PlacesOf(const CheckpointKey& checkpoint,
                                                       const std::string& name) const {
  const auto at = jobs_.find(checkpoint.job);
  if (at == jobs_.end()) return std::nullopt;
  const CheckpointId id{checkpoint.step, checkpoint.attempt, checkpoint.revision};
  std::map<Writer, peer::Place> places;
  std::set<Writer> named;  // whose names do not have it
  for (const auto& [rank, heard] : at->second->gathered.gathering().reports) {
    if (!members_.Up(rank)) continue;
    const auto& parts = heard.report.parts;
    for (auto part = parts.lower_bound({id, 0}); part != parts.end() && part->first.first == id;
         ++part) {
      const auto& [of, report] = *part;
      if (!report.in_memory) continue;
      peer::Place& place = places[of.second];
      place.writer = of.second;
      place.digest = report.digest;
      place.world_size = report.world_size;
      place.bytes = report.bytes;
      place.owner = report.owner;
      place.holders.insert(rank);
      if (report.names != nullptr && !name.empty() &&
          !std::binary_search(report.names->begin(), report.names->end(), NameHash(name))) {
        named.insert(of.second);
      }
    }
  }
  // Of a name that stands in none of the others, the part that nobody has told of yet may have it.
  const bool all = !places.empty() && static_cast<int64_t>(places.size()) ==
                                          int64_t{places.begin()->second.world_size};
  if (!name.empty() && !all && places.size() == named.size()) return std::nullopt;
  std::vector<peer::Place> found;
  for (auto& [writer, place] : places) {
    if (!named.contains(writer)) found.push_back(std::move(place));
  }
  return found;
}

const Gathered* Home::GatheredOf(const std::string& job) const {
  const auto at = jobs_.find(job);
  return at == jobs_.end() ? nullptr : &at->second->gathered;
}

// --- members

void Home::MemberCame(Rank rank) {
  unheard_.erase(rank);
  for (auto& [job, of] : jobs_) {
    // Its reports are those of another life, or may lack what changed.
    of->gathered.Seen(*members_.others().at(rank).id);
  }
  Doubt({rank});
}

void Home::MemberWent(Rank rank) { Doubt({rank}); }

void Home::MemberLost(Rank) {
  for (const auto& [job, of] : jobs_) due_.insert(job);
}

}  // namespace cairn::engine
