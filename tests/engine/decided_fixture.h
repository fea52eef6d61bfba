// A node of three, whose job's home is another one. The tests bring that member's word.
#pragma once

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "server/engine/job_record.h"
#include "server/engine/ring.h"
#include "tests/engine/engine_fixture.h"

namespace cairn::engine {

class Decided : public EngineTest {
 protected:
  void SetUp() override;
  void Up(const MemberId& member) { Apply(event::Exchanged{member.rank, member}); }
  void Down(const MemberId& member) { Apply(event::Exchanged{member.rank, std::nullopt}); }
  // The home of this one is the other member, too, and nobody here has heard of it.
  std::string AJobOfTheOthers() const;
  // The home says so.
  void KnowsNothingOf(const std::string& job);
  // What members were told of the job; the newest of each.
  std::map<Rank, peer::Record> Told(const std::string& job = "job") const;
  JobRecord ToldTo(const MemberId& member, const std::string& job = "job") const {
    return *DecodeJobRecord(Told(job).at(member.rank).encoded);
  }
  bool AskedTheHome(const std::string& job) const;
  // The member has journaled what it was told last.
  void Holds(const MemberId& member, const std::string& job = "job") {
    Apply(event::PeerSaid{member, peer::RecordHeld{job, Told(job).at(member.rank).number}});
  }
  void Hear(const MemberId& from, const JobRecord& record, uint64_t number = 1) {
    Apply(event::PeerSaid{from, peer::Record{record.job, EncodeJobRecord(record), number}});
  }
  static JobRecord Empty(const std::string& job = "job");
  // The numbers that the member was told to be held here.
  std::vector<uint64_t> HeldFor(const MemberId& member) const;
  RequestId Use(Step step, MonotonicNanos for_ns = 10 * kNanosPerSecond);
  RequestId Resume(Attempt attempt, Step step);
  // A trainer of a job that is new here goes on from nothing.
  RequestId BeginAnew(const std::string& job);
  RequestId Remove(Step step, const std::string& job = "job");
  Status Pin(Step step, bool pinned);

  bool storage = false;
  MemberId other, third;
  SessionId session = 0;
};

class DecidedWithStorage : public Decided {
 protected:
  DecidedWithStorage() {
    storage = true;
    options.default_policy.mode = PersistMode::kOnDemand;
  }
};

}  // namespace cairn::engine
