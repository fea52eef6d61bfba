#include "server/engine/cluster.h"

#include <type_traits>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"

namespace cairn::engine {
namespace {

// What may have been lost is said again, and what was refused tried again.
constexpr MonotonicNanos kTick = kNanosPerSecond;
// Whole reports.
constexpr MonotonicNanos kWholeEvery = 10 * kNanosPerSecond;
// How often a home looks at a job's files because others have written some.
constexpr MonotonicNanos kLookEvery = 10 * kNanosPerSecond;
// A report leads to a verdict, which changes what is reported: not more often than this in one event.
constexpr int kRounds = 4;

}  // namespace

// One function: which component hears of what from which other one.
Cluster::Cluster(const Below& below)
    : out_(*below.out),
      standing_(*below.standing),
      members_(*below.options, below.out),
      fetches_(*below.options, below.mode, below.journal, below.out, below.jobs, below.attempts,
               below.ledger, below.parts, below.manifests, below.eviction),
      copies_(*below.options, below.out, &members_, below.parts, &fetches_),
      offers_(below.out, &members_, below.jobs, below.parts, below.standing),
      grants_(below.out, &members_, below.ledger, below.parts),
      reporting_(below.out, &members_, below.jobs, below.parts, below.standing, &offers_, &copies_),
      home_(*below.options, below.out, &members_),
      verdicts_(*below.options, below.out, below.callers, &members_, below.jobs, below.attempts,
                below.parts, below.standing, below.again),
      loads_(below.out, below.callers, &members_, below.jobs, below.parts, &fetches_, below.again),
      decisions_(*below.options, below.out, &members_, below.jobs, below.attempts,
                 below.persistence, below.retention) {
  for (RingWatcher* watcher :
       {static_cast<RingWatcher*>(&home_), static_cast<RingWatcher*>(&reporting_),
        static_cast<RingWatcher*>(&verdicts_), static_cast<RingWatcher*>(&offers_),
        static_cast<RingWatcher*>(&copies_), static_cast<RingWatcher*>(&grants_),
        static_cast<RingWatcher*>(&decisions_), static_cast<RingWatcher*>(&home_moves_)}) {
    members_.Watch(watcher);
  }
  if (Alone()) return;
  below.attempts->set_ring_clock([this] { return members_.GreatestClock(); });
  below.parts->Watch(&offers_);
  standing_.ReportChanges();
  fetches_.set_newer_attempt(below.newer_attempt);
  verdicts_.set_newer_attempt(below.newer_attempt);
  Persistence* persistence = below.persistence;
  verdicts_.set_completed([this, persistence, look = below.look](Checkpoint* checkpoint) {
    persistence->CompletedElsewhere(checkpoint);
    // The home deletes files by policy, also where it has written none of them.
    Job* job = checkpoint->job;
    const bool unseen = checkpoint->elsewhere->stored && !checkpoint->files->persisted;
    if (unseen && job->owner->policy.keep_last > 0 && out_.now() - job->scan->read >= kLookEvery &&
        members_.HomeOf(job->name) == members_.self()) {
      look(job);
    }
  });
  verdicts_.set_changed([this, persistence](Job* job) {
    offers_.Changed(job->name);
    loads_.VerdictChanged(*job);
    persistence->VerdictHeard(job);
  });
  reporting_.set_saving(below.saving);
  reporting_.set_writing([persistence](const Job& job) { return persistence->WorksOn(job); });
  persistence->set_acts_for([this](const Part& part) { return offers_.Answers(part); });
  decisions_.set_newer_attempt(below.newer_attempt);
  decisions_.set_awaited([this](const std::string& job) { return verdicts_.Awaited(job); });
  decisions_.set_learn_safe(
      [this](Job* job, const std::pair<Attempt, Step>& safe) { verdicts_.LearnSafe(job, safe); });
  decisions_.set_changed(
      [this](const std::string& job, const JobRecord& record) { home_.SetRecord(job, record); });
  decisions_.set_forgotten([this](const std::string& job) { home_.ForgetRecord(job); });
  standing_.set_touched([this](const std::string& job) { decisions_.Look(job); });
  grants_.set_given([this](Rank reader, const PartKey& part) { offers_.Given(reader, part); });
  offers_.set_restoring([this](const CheckpointKey& key) { return loads_.Restoring(key); });
  offers_.set_refusals_changed(below.refusals_changed);
  offers_.set_finish([persistence] { persistence->OweFinished(); },
                     [eviction = below.eviction](Checkpoint* of) { eviction->Evict(of); });
  offers_.set_unknown_job([this](const std::string& job) { verdicts_.AskHome(job); });
  verdicts_.set_ask_self([this](const std::string& job, uint64_t question) {
    home_.Ask(members_.self(), job, question);
  });
  reporting_.set_to_self([this](const ReportDelta& delta) { home_.On(members_.self_id(), delta); });
  home_.set_to_self([this](const JobVerdict& verdict, uint64_t answers) {
    Hear(members_.self(), verdict, answers);
  });
  home_.set_owner([jobs = below.jobs](const std::string& name) -> std::optional<uint32_t> {
    const Job* job = jobs->Find(name);
    if (job == nullptr || !job->owner->owned) return std::nullopt;
    return job->owner->uid;
  });
  home_.set_own_report(
      [this](const std::string& job) { reporting_.WholeTo(members_.self(), job); });
  loads_.set_ask([this](const CheckpointKey& checkpoint, const std::string& name) {
    AskPlaces(checkpoint, name);
  });
}

Cluster::~Cluster() = default;

void Cluster::Start(const Restored& restored, const std::optional<MemberId>& self) {
  fetches_.Restore(restored);
  if (Alone()) return;
  members_.Start(restored, self);
  copies_.Restore(restored);
  verdicts_.Restore(restored);
  reporting_.Start();
  decisions_.Start();
  next_ = out_.now() + kTick;
}

// --- what members say

void Cluster::On(const event::PeerSaid& event) {
  if (Alone() || !members_.Heard(event.from)) return;
  Say(event.from, event.message);
}

void Cluster::Say(const MemberId& from, const peer::Message& message) {
  std::visit(
      [&](const auto& said) {
        using Said = std::decay_t<decltype(said)>;
        if constexpr (std::is_same_v<Said, peer::WantList> ||
                      std::is_same_v<Said, peer::ReleaseList>) {
          copies_.On(from, said);
        } else if constexpr (std::is_same_v<Said, peer::HaveList>) {
          offers_.On(from, said);
        } else if constexpr (std::is_same_v<Said, peer::Report>) {
          home_.On(from, said.delta);
        } else if constexpr (std::is_same_v<Said, peer::ReportWanted>) {
          reporting_.WholeTo(from.rank, said.job, said.question);
        } else if constexpr (std::is_same_v<Said, peer::VerdictSaid>) {
          Hear(from.rank, *said.verdict, said.answers);
        } else if constexpr (std::is_same_v<Said, peer::VerdictWanted>) {
          // First: a verdict does not tell how often a policy was said.
          decisions_.TellOf(said.job, from.rank);
          home_.Ask(from.rank, said.job, said.question);
        } else if constexpr (std::is_same_v<Said, peer::PlacesWanted>) {
          // Who is not answered asks again.
          if (auto places = home_.PlacesOf(said.checkpoint, said.name)) {
            out_.Do(action::Tell{from.rank,
                                 peer::PlacesSaid{said.checkpoint, said.name, *std::move(places)}});
          }
        } else if constexpr (std::is_same_v<Said, peer::PlacesSaid>) {
          loads_.On(said);
        } else {
          static_assert(
              std::is_same_v<Said, peer::Record> || std::is_same_v<Said, peer::RecordHeld>,
              "what is done about this message?");
          decisions_.On(from, said);
        }
      },
      message);
}

// Of two homes that say different things this node goes by the one that it reports to: the other has heard
// less, until it is the home of all. But what any of them calls protected somebody may have been told to be safe.
void Cluster::Hear(Rank home, const JobVerdict& verdict, uint64_t answers) {
  if (members_.HomeOf(verdict.job) == home) return verdicts_.Take(home, verdict, answers);
  verdicts_.TakeSafe(verdict);
}

// The answer of this node's own home comes with Run: whoever asks is not ready for it yet.
void Cluster::AskPlaces(const CheckpointKey& checkpoint, const std::string& name) {
  const Rank home = members_.HomeOf(checkpoint.job);
  if (home != members_.self()) {
    return out_.Do(action::Tell{home, peer::PlacesWanted{checkpoint, name}});
  }
  if (auto places = home_.PlacesOf(checkpoint, name)) {
    places_.push_back({checkpoint, name, *std::move(places)});
  }
}

void Cluster::On(const event::GrantAsked& event) {
  if (Alone()) {
    return out_.Answer(event.caller.request, absl::UnavailableError("this node is in no ring"));
  }
  grants_.On(event);
}

absl::Status Cluster::MetNobody(const std::string& job) {
  return absl::UnavailableError(
      absl::StrCat("job ", job,
                   ": this node has met no other member of its ring yet (ring.nodes); "
                   "they may know of it"));
}

// --- what follows

bool Cluster::Run() {
  if (Alone()) return false;
  const bool tick = out_.now() >= next_;
  if (tick) next_ = out_.now() + kTick;
  const bool whole = tick && out_.now() >= whole_at_;
  if (whole) whole_at_ = out_.now() + kWholeEvery;
  fetches_.TellAborted();
  if (tick) fetches_.ReturnEmpty();
  bool again = tick;
  bool changed = true;
  for (int round = 0; round < kRounds && changed; ++round) {
    copies_.Run(again);
    offers_.Run(again);
    decisions_.Run(again, again && whole);
    reporting_.Run(again && whole);
    changed = home_.Run(again);
    verdicts_.Run(again);
    loads_.Run(again);
    for (const peer::PlacesSaid& said : std::exchange(places_, {})) {
      loads_.On(said);
      changed = true;
    }
    again = false;
  }
  return changed || standing_.more_to_report() || fetches_.any_aborted();
}

// --- what is shown

reply::RingStatus Cluster::Status() const {
  reply::RingStatus status;
  if (Alone()) return status;
  status.self = members_.self_id();
  status.superseded = members_.Superseded();
  status.replica_bytes = fetches_.replica_bytes();
  status.replica_quota_bytes = copies_.quota();
  status.replica_reserved_bytes = copies_.reserved();
  status.fetches = static_cast<int64_t>(fetches_.under_way());
  status.fetching = fetches_.UnderWay();
  status.grants = static_cast<int64_t>(grants_.size());
  status.restoring = static_cast<int64_t>(loads_.restoring());
  for (const auto& [rank, member] : members_.others()) {
    reply::MemberStatus shown;
    shown.rank = rank;
    shown.state = member.lost ? "lost" : "silent";
    if (member.up) shown.state = offers_.Stalled(rank) ? "stalled" : "up";
    shown.incarnation = member.id.has_value() ? member.id->incarnation : 0;
    shown.silent_ms = member.up ? 0
                      : member.failing_since == 0
                          ? -1
                          : (out_.now() - member.failing_since) / kNanosPerMilli;
    shown.held_for_us_bytes = offers_.HeldBy(rank);
    shown.held_for_it_bytes = copies_.HeldFor(rank);
    status.members.push_back(std::move(shown));
  }
  return status;
}

reply::JobRing Cluster::StatusOf(const Job& job) const {
  reply::JobRing ring;
  const JobVerdictHeard& verdict = *job.verdict;
  ring.heard = !Alone() && verdict.heard;
  if (!ring.heard) return ring;
  const auto step = [](const std::optional<CheckpointId>& id) {
    return id.has_value() ? id->step : kNoStep;
  };
  ring.latest = step(verdict.latest);
  ring.protect = step(verdict.protect);
  ring.target = step(verdict.target);
  ring.asked = verdict.asked;
  ring.final = verdict.final;
  ring.home = members_.HomeOf(job.name);
  ring.silent.assign(verdict.silent.begin(), verdict.silent.end());
  ring.why = verdict.why.empty() ? offers_.Refusal(job.name) : verdict.why;
  const Checkpoint* latest =
      verdict.latest.has_value() ? CheckpointOf(job, *verdict.latest) : nullptr;
  if (latest != nullptr) ring.replicas = latest->elsewhere->replicas;
  ring.age = out_.now() - verdict.at;
  return ring;
}

std::string Cluster::CheckInvariants(std::map<SlabId, uint32_t>* pins) const {
  std::string problem = grants_.CheckInvariants(pins);
  if (problem.empty()) problem = fetches_.CheckInvariants();
  if (problem.empty()) problem = copies_.CheckInvariants();
  return problem;
}

}  // namespace cairn::engine
