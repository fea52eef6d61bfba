#include "server/engine/home.h"

#include <algorithm>
#include <utility>

namespace cairn::engine {
namespace {

// Who asked is told of changes for so long; it asks again while it cares.
constexpr MonotonicNanos kAskersKept = 30 * kNanosPerSecond;
constexpr MonotonicNanos kWantAgain = kNanosPerSecond;

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
      if (!member.up) of->gathered.Silent(rank, true);
    }
    const auto record = records_.find(job);
    if (record != records_.end()) of->gathered.SetRecord(record->second);
  }
  return *of;
}

void Home::On(const MemberId& from, const ReportDelta& delta) {
  Of& of = Find(delta.job);
  of.due = true;
  if (of.gathered.Apply(from, delta)) {
    of.reported.insert(from.rank);
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
  at->second->due = true;
}

void Home::Ask(Rank who, const std::string& job) {
  Of& of = Find(job);
  of.asked[who] = out_.now();
  of.due = true;
}

// A member that holds nothing of the job does not report by itself.
void Home::WantReports(const std::string& job, Of* of) {
  for (const Rank rank : members_.all()) {
    if (of->reported.contains(rank) || !members_.Up(rank)) continue;
    MonotonicNanos& last = of->wanted[rank];
    if (last != 0 && out_.now() - last < kWantAgain) continue;
    last = out_.now();
    if (rank == members_.self()) {
      own_report_(job);
    } else {
      out_.Do(action::Tell{rank, peer::ReportWanted{job}});
    }
  }
}

JobVerdict Home::VerdictOf(const std::string&, Of* of) const {
  const std::set<Rank> lost = members_.Lost();
  const bool final = std::all_of(members_.all().begin(), members_.all().end(), [&](Rank rank) {
    return (of->reported.contains(rank) && members_.Up(rank)) || lost.contains(rank);
  });
  of->gathered.SetFinal(final);
  JobVerdict verdict = of->gathered.Verdict();
  AddAttempts(of->gathered.gathering(), &verdict);
  return verdict;
}

void Home::Say(const std::string& job, Of* of) {
  const JobVerdict verdict = VerdictOf(job, of);
  std::set<Rank> to;
  for (const auto& [rank, said] : verdict.reports) {
    if (HoldsSomething(of->gathered.gathering(), rank)) to.insert(rank);
  }
  for (const auto& [rank, at] : of->asked) to.insert(rank);
  for (const Rank rank : to) {
    if (rank == members_.self()) {
      to_self_(verdict);
    } else if (members_.Up(rank)) {
      out_.Do(action::Tell{rank, peer::VerdictSaid{verdict}});
    }
  }
}

bool Home::Run(bool again) {
  bool said = false;
  for (auto at = jobs_.begin(); at != jobs_.end();) {
    const std::string& job = at->first;
    Of& of = *at->second;
    std::erase_if(of.asked,
                  [&](const auto& asked) { return out_.now() - asked.second > kAskersKept; });
    const bool mine = members_.HomeOf(job) == members_.self();
    if (!mine && of.asked.empty() && again) {
      at = jobs_.erase(at);  // another member's to say; who asks begins it anew
      continue;
    }
    if (of.due || again) {
      WantReports(job, &of);
      of.due = false;
      Say(job, &of);
      said = true;
    }
    ++at;
  }
  return said;
}

std::vector<peer::Place> Home::PlacesOf(const CheckpointKey& checkpoint,
                                        const std::string& name) const {
  const auto at = jobs_.find(checkpoint.job);
  if (at == jobs_.end()) return {};
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
  for (auto& [job, of] : jobs_) {
    // Its reports are those of another life, or may lack what changed.
    of->gathered.Seen(*members_.others().at(rank).id);
    of->reported.erase(rank);
    of->wanted.erase(rank);
    of->due = true;
  }
}

void Home::MemberWent(Rank rank) {
  for (auto& [job, of] : jobs_) {
    of->gathered.Silent(rank, true);
    of->due = true;
  }
}

void Home::MemberLost(Rank) {
  for (auto& [job, of] : jobs_) of->due = true;
}

}  // namespace cairn::engine
