#include "tests/year/world.h"

#include <algorithm>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"

namespace cairn::year {
namespace {

constexpr uint64_t kMiB = uint64_t{1} << 20;
constexpr int64_t kRestEvery = 500;
constexpr MonotonicNanos kMinute = 60 * kNanosPerSecond;
// As in `make soak`: no daemon dies in the last part, so that what one gathers in a longer life shows.
constexpr int64_t kUndisturbedPercent = 40;

const Shape kSteadyShape{2, {6 * kMiB, 5000}};
const Shape kRestlessShape{2, {4 * kMiB, 300}};
const Shape kPassingShape{3, {2 * kMiB, 700, 100}};

engine::Options OptionsOf() {
  engine::Options options;
  options.budget_bytes = 256 * kMiB;
  options.storage = true;
  return options;
}

JobPolicy Keep(PersistMode mode, int64_t keep_last) {
  JobPolicy policy;
  policy.mode = mode;
  policy.keep_last = keep_last;
  return policy;
}

WorkOfSteps Averaged(Work work) {
  WorkOfSteps of_steps;
  of_steps.events = static_cast<double>(work.events) / kRestEvery;
  of_steps.allocations = static_cast<double>(work.allocations) / kRestEvery;
  of_steps.us = work.us * kTimedEvery / kRestEvery;
  const auto middle = work.calls_us.begin() + static_cast<ptrdiff_t>(work.calls_us.size() / 2);
  std::nth_element(work.calls_us.begin(), middle, work.calls_us.end());
  of_steps.call_us = *middle;
  return of_steps;
}

}  // namespace

World::World(uint64_t seed, int64_t steps)
    : steps_(steps), rng_(seed), node_(OptionsOf(), &storage_), slots_(4) {
  slots_[1].life_permille = 1;
  for (size_t i = 2; i < slots_.size(); ++i) slots_[i].life_permille = 8;
  for (Slot& slot : slots_) NewJob(&slot);
}

std::vector<Sample> World::Run() {
  std::vector<Sample> samples;
  for (int64_t step = 1; step <= steps_ && broken_.empty(); ++step) {
    OneStep(step);
    if (step % kRestEvery == 0) samples.push_back(Rest(step));
  }
  return samples;
}

// --- jobs and their lives

void World::NewJob(Slot* slot) {
  const size_t index = static_cast<size_t>(slot - slots_.data());
  const Shape& shape = index == 0 ? kSteadyShape : index == 1 ? kRestlessShape : kPassingShape;
  const int64_t permille = slot->life_permille;
  *slot = {};
  slot->life_permille = permille;
  slot->ends_after = index < 2 ? 0 : static_cast<int64_t>(rng_.Between(300, 700));
  slot->policy = AnyPolicy();
  slot->trainer = std::make_unique<Trainer>(&node_, &rng_, absl::StrCat("job", ++jobs_), shape);
  slot->trainer->Begin(slot->policy);
  slot->past.lives = 1;
}

// Its owner removes what it left; the directory goes a while later, when the node has forgotten the job.
void World::EndJob(Slot* slot) {
  if (slot->pinned.step != kNoStep) Pin(slot);
  const std::vector<CheckpointInfo> left = slot->trainer->List();
  slot->trainer->End();
  const SessionId owner = node_.Hello({});
  for (const CheckpointInfo& info : left) {
    event::Remove remove{
        node_.From(owner), {info.key.job, info.key.step}, false, true, node_.Soon()};
    const RequestId request = remove.caller.request;
    node_.Answer(std::move(remove), request).status().IgnoreError();
  }
  node_.EndProcess(owner);
  slot->past.removed += static_cast<int64_t>(left.size());
  std::erase_if(ended_, [&](const Ended& ended) {
    if (ended.number > jobs_) return false;
    storage_.Drop(ended.job);
    return true;
  });
  ended_.push_back({jobs_ + 2, slot->trainer->job(), slot->past});
  node_.Count("jobs ended");
  NewJob(slot);
}

void World::NewLife(Slot* slot) {
  slot->trainer->End();
  if (rng_.Permille(100)) node_.Pass(20 * kMinute);
  slot->trainer->Begin(slot->policy);
  ++slot->past.lives;
}

// --- a step

void World::OneStep(int64_t step) {
  node_.Pass(static_cast<MonotonicNanos>(rng_.Between(8, 55)) * kNanosPerSecond);
  Weather(step);
  const uint64_t whose = rng_.Below(10);
  Slot& slot = slots_[whose < 3 ? 0 : whose < 6 ? 1 : whose < 8 ? 2 : 3];
  const bool may_end = slot.life_permille > 0;
  Trainer::Mishaps mishaps{.abort = 3, .die = 0, .seal_apart = 100, .twice = 10};
  if (may_end) mishaps.die = 1;
  const bool disturbed = step <= steps_ * (100 - kUndisturbedPercent) / 100;
  const bool kill = disturbed && rng_.Permille(3);
  const bool goes_on = slot.trainer->Save(mishaps, kill);
  if (kill) {
    for (Slot& other : slots_) other.trainer->DaemonDied();
  }
  Read(&slot, step);
  EndReaders(step);
  Manage(&slot);
  if (rng_.Permille(10)) Visit(step);
  if (slot.ends_after > 0 && slot.trainer->saves() >= slot.ends_after && !storage_.away) {
    EndJob(&slot);
  } else if (!goes_on || rng_.Permille(static_cast<uint64_t>(slot.life_permille))) {
    NewLife(&slot);
  }
}

void World::Weather(int64_t step) {
  if (step >= slow_until_) node_.persist_takes = kNanosPerSecond;
  if (rng_.Permille(2)) slow_until_ = step + 40;
  if (step < slow_until_) {
    node_.persist_takes = static_cast<MonotonicNanos>(rng_.Between(1, 240)) * kNanosPerSecond;
  }
  if (storage_.away && step >= away_until_) {
    storage_.away = false;
    if (rng_.Permille(500)) storage_.root.instance = absl::StrCat("mount ", step);
    node_.SeeStorage();
  } else if (storage_.away && step == away_until_ - 20) {
    node_.SeeStorage();  // until then what is asked of it failed
  } else if (!storage_.away && rng_.Permille(1)) {
    storage_.away = true;
    away_until_ = step + static_cast<int64_t>(rng_.Between(21, 40));
    node_.Count("storage away");
  }
}

// --- readers

void World::Read(Slot* slot, int64_t step) {
  Trainer& trainer = *slot->trainer;
  if (rng_.Permille(100)) {
    const engine::Caller caller = node_.From(trainer.session());
    const CheckpointRef ref{trainer.job(), trainer.next() - 1};
    const auto level = static_cast<Level>(rng_.Permille(500) ? Level::kPersisted : Level::kCached);
    const event::Wait wait{caller, ref, level, -1, node_.Soon()};
    if (rng_.Permille(500)) {
      const bool reached = node_.Answer(wait, caller.request).ok();
      node_.Count(reached ? "waits reached" : "waits in vain");
    } else {
      node_.Apply(wait);
    }
  }
  if (rng_.Permille(50)) trainer.List();
  if (!rng_.Permille(150)) return;
  event::Hello hello;
  hello.job = trainer.job();
  const SessionId session = node_.Hello(std::move(hello));
  if (session == 0) return;
  event::Open open;
  open.caller = node_.From(session);
  open.ref.job = trainer.job();
  if (rng_.Permille(300)) open.ref.step = trainer.Oldest(0);
  open.name = trainer.object();
  open.mode = rng_.Permille(300) ? engine::OpenMode::kFile : engine::OpenMode::kMap;
  open.deadline = node_.Soon();
  const RequestId request = open.caller.request;
  const StatusOr<reply::Body> opened = node_.Answer(std::move(open), request);
  Reader reader{session, 0, step + static_cast<int64_t>(rng_.Between(1, 12))};
  if (opened.ok()) {
    if (const auto* from_memory = std::get_if<reply::Open>(&*opened)) {
      reader.lease = from_memory->lend.lease;
      node_.users().Lock(reader.lease, from_memory->lend.slab, session);
    }
    node_.Count(reader.lease != 0 ? "opened from memory" : "opened from storage");
  }
  readers_.push_back(reader);
}

// Some say that they are done, others die.
void World::EndReaders(int64_t step) {
  std::erase_if(readers_, [&](const Reader& reader) {
    if (reader.until > step) return false;
    if (reader.lease != 0 && rng_.Permille(700)) {
      node_.users().Unlock(reader.lease);
      node_.Apply(event::Release{node_.From(reader.session), {reader.lease}});
    }
    node_.EndProcess(reader.session);
    return true;
  });
}

// Somebody asks about a job that does not exist.
void World::Visit(int64_t step) {
  const SessionId session = node_.Hello({});
  const engine::Caller caller = node_.From(session);
  const event::Latest latest{caller, absl::StrCat("typo", step), node_.Soon()};
  node_.Answer(latest, caller.request).status().IgnoreError();
  node_.EndProcess(session);
}

// --- owners

JobPolicy World::AnyPolicy() {
  switch (rng_.Below(6)) {
    case 0:
      return Keep(PersistMode::kNewest, 0);
    case 1:
      return Keep(PersistMode::kNewest, 2);
    case 2:
      return Keep(PersistMode::kEvery, 0);
    case 3:
      return Keep(PersistMode::kOnDemand, 0);
    case 4: {
      JobPolicy policy = Keep(PersistMode::kEvery, 4);
      policy.every = 3;
      policy.keep_every = 30;
      return policy;
    }
    default:
      return Keep(PersistMode::kEvery, 3);
  }
}

void World::Manage(Slot* slot) {
  Trainer& trainer = *slot->trainer;
  if (rng_.Permille(8)) {
    slot->policy = AnyPolicy();
    trainer.SetPolicy(slot->policy);
  }
  if (rng_.Permille(8)) Pin(slot);
  if (rng_.Permille(4)) Remove(slot);
  if (rng_.Permille(10)) {
    node_.Apply(event::PersistNow{node_.From(trainer.session()), {trainer.job()}});
  }
  if (slot == &slots_[1] && rng_.Permille(1)) Use(slot);
}

void World::Pin(Slot* slot) {
  Trainer& trainer = *slot->trainer;
  const bool pins = slot->pinned.step == kNoStep;
  if (pins) {
    const StatusOr<reply::Latest> latest = trainer.Latest();
    if (!latest.ok()) return;
    const CheckpointKey& key = latest->key;
    slot->pinned = {key.job, key.step, key.attempt, key.revision};
  }
  const engine::Caller caller = node_.From(trainer.session());
  const bool ok = node_.Answer(event::Pin{caller, slot->pinned, pins}, caller.request).ok();
  node_.Count(absl::StrCat(pins ? "pin" : "unpin", ok ? "ned" : " refused"));
  if (!pins || !ok) slot->pinned = {};
}

void World::Remove(Slot* slot) {
  Trainer& trainer = *slot->trainer;
  const Step step = trainer.Oldest(4);
  if (step == kNoStep) return;
  const bool memory_only = rng_.Permille(200);
  event::Remove remove{
      node_.From(trainer.session()), {trainer.job(), step}, memory_only, true, node_.Soon()};
  const RequestId request = remove.caller.request;
  if (!memory_only) ++slot->past.removed;  // perhaps also when it says that it could not yet
  const bool removed = node_.Answer(std::move(remove), request).ok();
  if (!removed) return node_.Count("rm refused");
  node_.Count(memory_only ? "dropped from memory" : "removed");
}

// Its owner goes back by hand; the trainers that are there may save nothing more.
void World::Use(Slot* slot) {
  Trainer& trainer = *slot->trainer;
  const std::vector<CheckpointInfo> all = trainer.List();
  if (all.empty()) return;
  const CheckpointKey& key = all[rng_.Below(all.size())].key;
  event::Use use{
      node_.From(trainer.session()), {key.job, key.step, key.attempt}, true, node_.Soon()};
  const RequestId request = use.caller.request;
  if (!node_.Ask<reply::Latest>(std::move(use), request).ok()) return;
  node_.Count("used");
  ++slot->past.used;
}

// --- rests

Sample World::Rest(int64_t step) {
  EndReaders(step + kRestEvery);
  node_.persist_takes = kNanosPerSecond;
  slow_until_ = 0;
  if (std::exchange(storage_.away, false)) node_.SeeStorage();
  for (Slot& slot : slots_) {
    if (slot.pinned.step != kNoStep) Pin(&slot);
    slot.policy = Keep(PersistMode::kEvery, 3);
    slot.trainer->SetPolicy(slot.policy);
  }
  for (int i = 0; i < 5; ++i) {
    node_.Pass(kMinute / 2);
    for (Slot& slot : slots_) {
      if (!slot.trainer->Save({}, false)) NewLife(&slot);
    }
  }
  node_.Pass(30 * kMinute);
  if (!node_.Quiet()) broken_ = "a persist has not ended";
  if (broken_.empty()) broken_ = node_.engine().CheckInvariants();

  Sample sample;
  sample.step = step;
  sample.heap = EngineHeap();
  sample.work = Averaged(node_.TakeWork());
  sample.files = storage_.files();
  const std::vector<Fact> facts = node_.engine().Snapshot();
  sample.lineage_entries = node_.LineageEntries(facts);
  for (const Fact& fact : facts) {
    sample.journal_bytes += EncodeFact(fact).size();
    ++sample.facts[std::string(KindOf(fact).name)];
  }
  const auto add = [&sample](const Past& past) {
    sample.past.lives += past.lives;
    sample.past.used += past.used;
    sample.past.removed += past.removed;
  };
  for (const Slot& slot : slots_) {
    add(slot.past);
    sample.aborted += slot.trainer->aborted();
  }
  for (const Ended& ended : ended_) add(ended.past);
  return sample;
}

}  // namespace cairn::year
