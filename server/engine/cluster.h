// What the engine has for a ring, wired: who tells whom. In no ring nothing of it runs.
//
//   Exchanged ─▶ Members ─▶ (came, went, lost) ─▶ all that follow
//   commits, verdicts ─▶ Offers ─ wants ─▶ the backup's Copies ─▶ Fetches
//   Fetches, commits ─▶ Reporting ─ reports ─▶ the job's Home ─ verdicts ─▶ Verdicts
//   GrantAsked ─▶ Grants;  an open of what is elsewhere ─▶ Loads ─▶ Fetches
#pragma once

#include <algorithm>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "server/engine/copies.h"
#include "server/engine/decisions.h"
#include "server/engine/grants.h"
#include "server/engine/home.h"
#include "server/engine/home_moves.h"
#include "server/engine/loads.h"
#include "server/engine/offers.h"
#include "server/engine/reporting.h"
#include "server/engine/verdicts.h"

namespace cairn::engine {

class Cluster {
 public:
  // The components of a node that the ring's stand on; all outlive it.
  struct Below {
    const Options* options;
    const Mode* mode;
    JournalRoom* journal;
    Outbox* out;
    Callers* callers;
    Jobs* jobs;
    Standing* standing;
    Ledger* ledger;
    Attempts* attempts;
    Parts* parts;
    Eviction* eviction;
    Manifests* manifests;
    std::function<void(const Event&)> again;  // handles a parked event once more
    Persistence* persistence;
    Retention* retention;
    std::function<void(Job*)> newer_attempt;                      // older ones are to be fenced
    std::function<std::vector<SavingReport>(const Job&)> saving;  // which processes save
    std::function<void(Job*)> refusals_changed;                   // who waits for copies is to look
    std::function<void(Job*)> look;                               // at the job's storage
  };
  explicit Cluster(const Below& below);
  ~Cluster();

  bool Alone() const { return members_.Alone(); }
  const Members& members() const { return members_; }
  // Jobs may have another home since this was last asked.
  bool TakeHomesMoved() { return home_moves_.Take(); }
  Verdicts& verdicts() { return verdicts_; }
  const Verdicts& verdicts() const { return verdicts_; }
  Loads& loads() { return loads_; }

  void Start(const Restored& restored, const std::optional<MemberId>& self);
  void On(const event::Exchanged& event) { members_.On(event); }
  bool On(const event::LifeMet& event) { return members_.On(event); }
  void On(const event::SeatChanged& event) { members_.On(event); }
  bool On(const event::Fenced& event) { return members_.On(event); }
  void On(const event::PeerSaid& event);
  void On(const event::GrantAsked& event);
  void On(const event::GrantEnded& event) { grants_.On(event); }
  void On(const event::FetchAdvanced& event) { fetches_.On(event); }
  void On(const event::Fetched& event) { fetches_.On(event); }
  bool SlabMade(SlabId slab, const Status& status) { return fetches_.SlabMade(slab, status); }
  // Memory is short.
  void FreeSpares() { fetches_.FreeSpares(); }

  // After each event. True: there is more to do at once.
  bool Run();
  MonotonicNanos next() const { return std::min(next_, decisions_.next()); }
  // At the end of an event: takes out the answers that wait for a second journal, adds those that may leave now.
  void HoldBack(std::vector<Action>* actions) { decisions_.HoldBack(actions); }
  // Not where Alone().
  void Decided(const Caller& caller, const std::string& job, std::optional<MonotonicNanos> deadline,
               const JobPolicy* policy) {
    decisions_.Decided(caller, job, deadline, policy);
  }
  std::optional<MonotonicNanos> DeadlineOf(RequestId request) const {
    return decisions_.DeadlineOf(request);
  }
  void SessionEnds(SessionId session) { decisions_.SessionEnds(session); }
  void CallerLeft(RequestId request) { decisions_.CallerLeft(request); }
  void TimerWasLate() {
    members_.TimerWasLate();
    home_.TimerWasLate();
    verdicts_.TimerWasLate();
    offers_.TimerWasLate();
  }

  // Why a node that began empty, and that no member of its ring has met, says nothing of what it does not have.
  static absl::Status MetNobody(const std::string& job);
  const Gathered* GatheredOf(const std::string& job) const { return home_.GatheredOf(job); }
  bool MakesWay(const PartKey& part) const { return copies_.MakesWay(part); }
  // Memory that replicas of others' next steps will want.
  uint64_t RoomForReplicas() const { return copies_.Unused(); }
  reply::RingStatus Status() const;
  reply::JobRing StatusOf(const Job& job) const;
  // Why a backup keeps nothing of the job; empty: none refuses it.
  std::string RefusalOf(const Job& job) const { return offers_.Refusal(job.name); }
  uint64_t journal_bytes() const { return fetches_.journal_bytes(); }
  size_t under_way() const { return fetches_.under_way() + grants_.size(); }
  void Snapshot(std::vector<Fact>* facts) const { members_.Snapshot(facts); }
  std::string CheckInvariants(std::map<SlabId, uint32_t>* pins) const;

 private:
  void Say(const MemberId& from, const peer::Message& message);
  void Hear(Rank home, const JobVerdict& verdict, uint64_t answers);
  void AskPlaces(const CheckpointKey& checkpoint, const std::string& name);

  Outbox& out_;
  Standing& standing_;
  Members members_;
  Fetches fetches_;
  Copies copies_;
  Offers offers_;
  Grants grants_;
  Reporting reporting_;
  Home home_;
  Verdicts verdicts_;
  Loads loads_;
  HomeMoves home_moves_;
  Decisions decisions_;
  MonotonicNanos next_ = kNever;          // when lists and reports are said again
  MonotonicNanos whole_at_ = 0;           // and the whole of them
  std::vector<peer::PlacesSaid> places_;  // that this node's own home said
};

}  // namespace cairn::engine
