#include "tests/ring/node.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "server/engine/gathered.h"
#include "tests/ring/world.h"

namespace cairn::engine::ringsim {
namespace {

// The invariants cost more than most events: they are looked at after this many.
constexpr uint64_t kCheckEvery = 32;

// Where the engine is told who it is (a daemon that knows it from its journal keeps that).
template <class R>
void TellSelf(const MemberId& self, R* recovered) {
  if constexpr (requires { recovered->member = self; }) recovered->member = self;
}

std::string InstanceOf(uint64_t number) {
  std::string instance = absl::StrCat("instance-", number);
  instance.resize(kInstanceBytes, '.');
  return instance;
}

template <class T>
std::string TypeName() {
  const std::string name = __PRETTY_FUNCTION__;
  const size_t begin = name.find("T = ") + 4;
  const std::string type = name.substr(begin, name.find_first_of(";]", begin) - begin);
  return type.substr(type.rfind("::") + 2);
}

}  // namespace

std::string Words(const peer::Message& message) {
  return std::visit(
      [&](const auto& m) -> std::string {
        std::string words = TypeName<std::decay_t<decltype(m)>>();
        if constexpr (requires { m.wants; }) {
          absl::StrAppend(&words, " v", m.version);
          for (const auto& want : m.wants)
            absl::StrAppend(&words, ", ", want.part.DebugString(), want.target ? "!" : "");
        }
        if constexpr (requires { m.haves; }) {
          absl::StrAppend(&words, " v", m.version, " of v", m.wants_version);
          for (const auto& have : m.haves) {
            absl::StrAppend(&words, ", ", have.part.DebugString(), " ",
                            have.state == peer::HaveState::kHeld      ? "held"
                            : have.state == peer::HaveState::kRefused ? "refused: " + have.why
                                                                      : "under way");
          }
        }
        if constexpr (requires { m.releases; }) {
          for (const auto& release : m.releases) {
            absl::StrAppend(&words, ", ", release.part.DebugString(), " fate ",
                            static_cast<int>(release.fate), " by ", release.by.step);
          }
        }
        if constexpr (requires { m.delta; }) {
          absl::StrAppend(&words, " ", m.delta.after, "->", m.delta.number, ", ",
                          m.delta.parts.size(), " parts, ", m.delta.parts_gone.size(), " gone");
        }
        if constexpr (requires { m.verdict; }) {
          const JobVerdict& v = *m.verdict;
          const auto text = [](const std::optional<CheckpointId>& id) {
            return id ? absl::StrCat(id->step, "@", id->attempt, ".", id->revision) : "none";
          };
          absl::StrAppend(&words, " of ", v.reports.size(), " reports", v.final ? " final" : "",
                          ", latest ", text(v.latest), ", protect ", text(v.protect), ", target ",
                          text(v.target), v.why.empty() ? "" : ", ", v.why);
        }
        return words;
      },
      message);
}

std::string Words(const Event& event) {
  return std::visit(
      [](const auto& e) -> std::string {
        std::string words = TypeName<std::decay_t<decltype(e)>>();
        if constexpr (requires { e.part; }) absl::StrAppend(&words, " ", e.part.DebugString());
        if constexpr (requires {
                        e.rank;
                        e.who;
                      }) {
          absl::StrAppend(&words, " with ", e.rank, e.who ? " ok" : " failed");
        }
        if constexpr (requires {
                        e.message;
                        e.from;
                      }) {
          absl::StrAppend(&words, " by ", e.from.rank, ": ", Words(e.message));
        }
        if constexpr (requires { e.fetch; }) absl::StrAppend(&words, " ", e.fetch);
        if constexpr (requires { e.status.message(); }) {
          if (!e.status.ok()) absl::StrAppend(&words, ": ", e.status.ToString());
        }
        return words;
      },
      event);
}

SimNode::SimNode(World* world, int id, const Options& options, int64_t incarnation)
    : Executor(&world->storage),
      world_(*world),
      id_(id),
      options_(options),
      member_{options.ring.rank, incarnation, InstanceOf(static_cast<uint64_t>(id))},
      boot_(static_cast<MonotonicNanos>(world->rng.Below(3600)) * sim::kSecond) {
  if (options.ring.from_catalog) {
    fact::RingSeat seat;
    seat.instance = member_.instance;
    seat.rank = member_.rank;
    seat.incarnation = incarnation;
    journal_.push_back(std::move(seat));
  }
  if (world_.shape.clocks_apart) {
    unix_offset_ms_ = static_cast<int64_t>(world_.rng.Below(5 * 365)) * 24 * 3600 * 1000;
  }
}

SimNode::SimNode(World* world, int id, const Options& options, std::string address)
    : SimNode(world, id, options, int64_t{0}) {
  address_ = std::move(address);
}

MonotonicNanos SimNode::now() const { return world_.clock.now + boot_; }
int64_t SimNode::unix_ms() const { return world_.clock.UnixMs() + unix_offset_ms_; }

// --- its lives

void SimNode::StartDaemon() {
  if (dead_ || engine_ != nullptr) return;
  ++daemon_;
  if (world_.catalog != nullptr) RecoverSeat();
  Recovered recovered;
  TellSelf(member_, &recovered);
  recovered.facts = journal_;
  recovered.held_slabs = memory_.Held();
  recovered.live_sessions.assign(live_.begin(), live_.end());
  if (in_safe_mode) recovered.safe_mode = "its journal cannot be written";
  for (const auto& [part, held] : held_) {
    if (held.table != nullptr) recovered.tables[part] = held.table;
  }
  engine_ = std::make_unique<Engine>(options_);
  applying_ = true;
  Carry(engine_->Start(now(), unix_ms(), std::move(recovered)));
  applying_ = false;
  Drain();
  SeeStorage();
  world_.net.Open(this);
  if (seat_ != nullptr) seat_->Begin();
  for (Event& event : std::exchange(for_next_daemon_, {})) Apply(std::move(event));
}

void SimNode::KillDaemon(MonotonicNanos until_next) {
  if (dead_ || engine_ == nullptr) return;
  world_.report.Note([&] { return absl::StrCat("node ", id_, ": its daemon dies"); });
  world_.report.Count("daemon killed");
  EndDaemon(until_next);
}

void SimNode::EndDaemon(MonotonicNanos until_next) {
  hindered_at_ = world_.clock.now + until_next;
  if (world_.rng.Permille(500)) journal_ = engine_->Snapshot();
  engine_.reset();
  queue_.clear();
  while_paused_.clear();
  paused_ = false;
  wake_at_ = 0;
  grants_.clear();
  transfers_.clear();
  FailCalls();
  const uint64_t died = daemon_;
  world_.In(until_next, [this, died] {
    if (daemon_ == died) StartDaemon();
  });
}

void SimNode::FailCalls() {
  for (auto& [request, answer] : std::exchange(calls_, {})) {
    world_.In(kMilli,
              [answer = std::move(answer)] { answer(absl::UnavailableError("the daemon died")); });
  }
}

void SimNode::Die() {
  world_.report.Note([&] { return absl::StrCat("node ", id_, " (rank ", rank(), ") dies"); });
  dead_ = true;
  ++daemon_;
  engine_.reset();
  if (world_.catalog != nullptr) world_.catalog->Changed();
  queue_.clear();
  while_paused_.clear();
  for_next_daemon_.clear();
  calls_.clear();
  grants_.clear();
  transfers_.clear();
  held_.clear();
  memory_ = {};
}

void SimNode::Pause() {
  paused_ = true;
  hindered_at_ = world_.clock.now;
}

void SimNode::Resume() {
  paused_ = false;
  hindered_at_ = world_.clock.now;
  const uint64_t daemon = daemon_;
  for (auto& what : std::exchange(while_paused_, {})) {
    if (daemon != daemon_ || engine_ == nullptr) return;  // it went with the daemon
    what();
  }
}

void SimNode::SeeStorage() {
  if (!daemon_up()) return;
  event::StorageSeen seen;
  seen.root = world_.storage.root;
  if (world_.storage.away)
    seen.root = absl::UnavailableError("storage: nothing stands at the root");
  if (options_.storage) After(kMilli, [this, seen] { Apply(seen); });
}

// --- entering it

void SimNode::After(MonotonicNanos delay, std::function<void()> what) {
  const uint64_t daemon = daemon_;
  world_.In(delay, [this, daemon, what = std::move(what)]() mutable {
    if (daemon != daemon_ || dead_ || engine_ == nullptr) return;
    if (paused_) {
      while_paused_.push_back(std::move(what));
    } else {
      what();
    }
  });
}

void SimNode::Enter(Event event) {
  if (dead_) return;
  if (engine_ == nullptr) {
    for_next_daemon_.push_back(std::move(event));
  } else if (paused_) {
    while_paused_.push_back(
        [this, event = std::move(event)]() mutable { Apply(std::move(event)); });
  } else {
    Apply(std::move(event));
  }
}

void SimNode::Apply(Event event) {
  if (applying_ || !queue_.empty() || engine_ == nullptr || !world_.ok()) {
    queue_.push_back(std::move(event));
  } else {
    ApplyOne(std::move(event));
  }
  if (!applying_) Drain();
}

void SimNode::Drain() {
  while (!queue_.empty() && engine_ != nullptr && world_.ok()) {
    Event event = std::move(queue_.front());
    queue_.pop_front();
    ApplyOne(std::move(event));
  }
}

void SimNode::ApplyOne(Event&& event) {
  world_.report.Note([&] { return absl::StrCat("node ", id_, " <- ", Words(event)); });
  applying_ = true;
  const bool rings = std::holds_alternative<event::PeerSaid>(event);
  Outcome outcome = engine_->Apply(now(), std::move(event));
  ++world_.report.result().events;
  Carry(std::move(outcome));
  applying_ = false;
  if (engine_ == nullptr) return;
  if (world_.report.traces()) NoteAsHome();
  if (!world_.shape.checked) return;
  if (++applies_ % kCheckEvery != 0 && !(rings && applies_ % 8 == 0)) return;
  const std::string wrong = engine_->CheckInvariants();
  if (!wrong.empty()) world_.Fail(absl::StrCat("node ", id_, ": invariant: ", wrong));
}

// What it would say as the home of its jobs, whenever that is something else.
void SimNode::NoteAsHome() {
  for (const std::string& job : engine_->JobNames()) {
    const Gathered* gathered = engine_->GatheredOf(job);
    if (gathered == nullptr) continue;
    const std::string words = Words(peer::VerdictSaid{gathered->Verdict()});
    if (std::exchange(as_home_[job], words) == words) continue;
    world_.report.Note(
        [&] { return absl::StrCat("node ", id_, " as home of ", job, ": ", words); });
  }
}

void SimNode::Carry(Outcome outcome) {
  for (Fact& fact : outcome.facts) {
    Mirror(fact);
    journal_.push_back(std::move(fact));
  }
  if (memory_.TotalBytes() > options_.budget_bytes) {
    world_.Fail(absl::StrCat("promise 8: node ", id_, " has more slabs than its budget"));
  }
  for (Action& action : outcome.actions) CarryOut(&action);
}

void SimNode::Mirror(const Fact& fact) {
  if (const auto* committed = std::get_if<fact::PartCommitted>(&fact)) {
    Held& held = held_[committed->part] = {};
    held.digest = committed->digest;
    held.role = committed->role;
    held.owner = committed->owner;
    const auto record = records_.find({committed->extent.slab, committed->extent.offset});
    if (record == records_.end() || record->second.first != committed->digest) {
      return world_.Fail(absl::StrCat("node ", id_, " says that it has ",
                                      committed->part.DebugString(),
                                      ", whose record is not there"));
    }
    held.table = record->second.second;
    world_.report.Note([&] {
      return absl::StrCat("node ", id_, " holds ", committed->part.DebugString(), " as ",
                          held.role == PartRole::kOwn ? "its own" : "a copy");
    });
    world_.truth.Committed(*this, committed->part, held);
    if (world_.options.lie == Lie::kReplicaLost && held.role == PartRole::kReplica &&
        world_.rng.Permille(100)) {
      for (const ExtentRef& extent : held.table->extents) held.left.insert(extent.slab);
    }
    return;
  }
  if (const auto* life = std::get_if<fact::MemberLife>(&fact)) {
    fenced_ = life->superseded_by != 0 ? life->instance : "";
    if (life->superseded_by != 0) Deserted();
  }
  if (const auto* dropped = std::get_if<fact::PartDropped>(&fact)) {
    world_.report.Note(
        [&] { return absl::StrCat("node ", id_, " drops ", dropped->part.DebugString()); });
    held_.erase(dropped->part);
    world_.truth.GivenUp(dropped->part);
  }
  if (const auto* left = std::get_if<fact::PartLeftSlab>(&fact)) {
    const auto at = held_.find(left->part);
    if (at != held_.end()) at->second.left.insert(left->slab);
    world_.report.Note([&] {
      return absl::StrCat("node ", id_, ": ", left->part.DebugString(), " leaves slab ",
                          left->slab);
    });
  }
  if (const auto* object = std::get_if<fact::ObjectDropped>(&fact)) {
    const auto at = held_.find(object->part);
    if (at != held_.end()) at->second.broken.insert(object->name);
  }
}

// --- the processes on it

void SimNode::Hello(event::Hello hello, Answer answer) {
  hello.uid = hello.gid = kUid;
  hello.secret = "secret";
  hello.pid = ++last_pid_;
  hello.process = absl::StrCat("process-", id_, "-", last_pid_);
  hello.process.resize(kProcessTokenBytes, ' ');
  Call(0, std::move(hello), std::move(answer));
}

void SimNode::EndProcess(SessionId session) {
  if (dead_ || session == 0) return;
  users_.Died(session);
  live_.erase(session);
  if (daemon_up()) Enter(event::SessionEnded{session});
}

// --- what it really has

std::string SimNode::Wrong(const Held& held) const {
  if (held.table == nullptr) return "its table is not there";
  const PartTable& table = *held.table;
  for (size_t i = 0; i < table.entries.size() && i < table.extents.size(); ++i) {
    if (held.left.contains(table.extents[i].slab)) continue;
    if (held.broken.contains(table.entries[i]->name)) continue;
    std::string wrong = memory_.Wrong(*table.entries[i], table.extents[i]);
    if (!wrong.empty()) return wrong;
  }
  return "";
}

bool SimNode::Whole(const PartKey& part, const std::string& digest) const {
  const auto at = held_.find(part);
  return !dead_ && at != held_.end() && at->second.digest == digest && at->second.left.empty() &&
         at->second.broken.empty() && at->second.table != nullptr &&
         at->second.table->extents.size() == at->second.table->entries.size();
}

uint64_t SimNode::replica_bytes() const {
  uint64_t bytes = 0;
  for (const auto& [part, held] : held_) {
    if (held.role != PartRole::kReplica || held.table == nullptr) continue;
    for (size_t i = 0; i < held.table->extents.size(); ++i) {
      if (!held.left.contains(held.table->extents[i].slab)) bytes += held.table->entries[i]->length;
    }
  }
  return bytes;
}

}  // namespace cairn::engine::ringsim
