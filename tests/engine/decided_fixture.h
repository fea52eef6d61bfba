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
  void SetUp() override {
    // The job's home is the other member, whose word the tests bring.
    const std::vector<Rank> order = HomeOrder("job", {0, 1, 2});
    other = MemberId{order[0], 1, std::string(kInstanceBytes, 'o')};
    third = MemberId{order[1], 1, std::string(kInstanceBytes, 't')};
    options.ring.cluster = "test";
    options.ring.rank = order[2];
    options.ring.members = {{0, "10.0.0.1:1"}, {1, "10.0.0.2:1"}, {2, "10.0.0.3:1"}};
    options.ring.replicas = 0;
    options.storage = storage;
    EngineTest::SetUp();
    Up(other);
    session = Hello();
    KnowsNothingOf("job");
    Save(session, 1);
    Save(session, 2);
    tells.clear();
  }
  void Up(const MemberId& member) { Apply(event::Exchanged{member.rank, member}); }
  void Down(const MemberId& member) { Apply(event::Exchanged{member.rank, std::nullopt}); }
  // The home of this one is the other member, too, and nobody here has heard of it.
  std::string AJobOfTheOthers() const {
    for (int i = 0;; ++i) {
      const std::string job = absl::StrCat("unheard", i);
      if (HomeOrder(job, {other.rank, options.ring.rank})[0] == other.rank) return job;
    }
  }
  // The home says so.
  void KnowsNothingOf(const std::string& job) {
    JobVerdict nothing;
    nothing.job = job;
    nothing.final = true;
    Apply(event::PeerSaid{other, peer::VerdictSaid{nothing}});
  }
  // What members were told of the job; the newest of each.
  std::map<Rank, peer::Record> Told(const std::string& job = "job") const {
    std::map<Rank, peer::Record> told;
    for (const action::Tell& tell : tells) {
      const auto* record = std::get_if<peer::Record>(&tell.message);
      if (record != nullptr && record->job == job) told[tell.rank] = *record;
    }
    return told;
  }
  JobRecord ToldTo(const MemberId& member, const std::string& job = "job") const {
    return *DecodeJobRecord(Told(job).at(member.rank).encoded);
  }
  bool AskedTheHome(const std::string& job) const {
    return std::any_of(tells.begin(), tells.end(), [&](const action::Tell& tell) {
      const auto* wanted = std::get_if<peer::VerdictWanted>(&tell.message);
      return wanted != nullptr && wanted->job == job && tell.rank == other.rank;
    });
  }
  // The member has journaled what it was told last.
  void Holds(const MemberId& member, const std::string& job = "job") {
    Apply(event::PeerSaid{member, peer::RecordHeld{job, Told(job).at(member.rank).number}});
  }
  void Hear(const MemberId& from, const JobRecord& record, uint64_t number = 1) {
    Apply(event::PeerSaid{from, peer::Record{record.job, EncodeJobRecord(record), number}});
  }
  static JobRecord Empty(const std::string& job = "job") {
    JobRecord record;
    record.job = job;
    record.owner = JobRecord::Owner{1000, 1000};
    return record;
  }
  // The numbers that the member was told to be held here.
  std::vector<uint64_t> HeldFor(const MemberId& member) const {
    std::vector<uint64_t> numbers;
    for (const action::Tell& tell : tells) {
      const auto* held = std::get_if<peer::RecordHeld>(&tell.message);
      if (held != nullptr && tell.rank == member.rank) numbers.push_back(held->number);
    }
    return numbers;
  }
  RequestId Use(Step step, MonotonicNanos for_ns = 10 * kNanosPerSecond) {
    event::Use use{From(session), {"job", step, /*attempt=*/1}, /*fence=*/true, now + for_ns};
    Apply(use);
    return use.caller.request;
  }
  RequestId Resume(Attempt attempt, Step step) {
    event::ResumeFrom resume{From(session), "job", attempt, step, Soon(), /*fence=*/true};
    Apply(resume);
    return resume.caller.request;
  }
  // A trainer of a job that is new here goes on from nothing.
  RequestId BeginAnew(const std::string& job) {
    event::ResumeFrom resume;
    resume.caller = From(Hello({.job = job}));
    resume.job = job;
    resume.attempt = 5;
    resume.step = kNoStep;
    resume.deadline = Soon();
    resume.fence = true;
    Apply(resume);
    return resume.caller.request;
  }
  RequestId Remove(Step step, const std::string& job = "job") {
    event::Remove remove;
    remove.caller = From(session);
    remove.ref = {job, step};
    remove.force = true;
    remove.deadline = Soon();
    Apply(remove);
    return remove.caller.request;
  }
  Status Pin(Step step, bool pinned) {
    event::Pin pin{From(session), {"job", step}, pinned};
    Apply(pin);
    Holds(other);
    return AnswerTo(pin.caller.request).status();
  }

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
