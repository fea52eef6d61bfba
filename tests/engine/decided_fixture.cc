#include "tests/engine/decided_fixture.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace cairn::engine {

void Decided::SetUp() {
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

std::string Decided::AJobOfTheOthers() const {
  for (int i = 0;; ++i) {
    const std::string job = absl::StrCat("unheard", i);
    if (HomeOrder(job, {other.rank, options.ring.rank})[0] == other.rank) return job;
  }
}

void Decided::KnowsNothingOf(const std::string& job) {
  JobVerdict nothing;
  nothing.job = job;
  nothing.final = true;
  Apply(event::PeerSaid{other, peer::VerdictSaid{nothing}});
}

std::map<Rank, peer::Record> Decided::Told(const std::string& job) const {
  std::map<Rank, peer::Record> told;
  for (const action::Tell& tell : tells) {
    const auto* record = std::get_if<peer::Record>(&tell.message);
    if (record != nullptr && record->job == job) told[tell.rank] = *record;
  }
  return told;
}

bool Decided::AskedTheHome(const std::string& job) const {
  return std::any_of(tells.begin(), tells.end(), [&](const action::Tell& tell) {
    const auto* wanted = std::get_if<peer::VerdictWanted>(&tell.message);
    return wanted != nullptr && wanted->job == job && tell.rank == other.rank;
  });
}

JobRecord Decided::Empty(const std::string& job) {
  JobRecord record;
  record.job = job;
  record.owner = JobRecord::Owner{1000, 1000};
  return record;
}

std::vector<uint64_t> Decided::HeldFor(const MemberId& member) const {
  std::vector<uint64_t> numbers;
  for (const action::Tell& tell : tells) {
    const auto* held = std::get_if<peer::RecordHeld>(&tell.message);
    if (held != nullptr && tell.rank == member.rank) numbers.push_back(held->number);
  }
  return numbers;
}

RequestId Decided::Use(Step step, MonotonicNanos for_ns) {
  event::Use use{From(session), {"job", step, /*attempt=*/1}, /*fence=*/true, now + for_ns};
  Apply(use);
  return use.caller.request;
}

RequestId Decided::Resume(Attempt attempt, Step step) {
  event::ResumeFrom resume{From(session), "job", attempt, step, Soon(), /*fence=*/true};
  Apply(resume);
  return resume.caller.request;
}

RequestId Decided::BeginAnew(const std::string& job) {
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

RequestId Decided::Remove(Step step, const std::string& job) {
  event::Remove remove;
  remove.caller = From(session);
  remove.ref = {job, step};
  remove.force = true;
  remove.deadline = Soon();
  Apply(remove);
  return remove.caller.request;
}

Status Decided::Pin(Step step, bool pinned) {
  event::Pin pin{From(session), {"job", step}, pinned};
  Apply(pin);
  Holds(other);
  return AnswerTo(pin.caller.request).status();
}

}  // namespace cairn::engine
