#include "tests/year/node.h"

#include <algorithm>
#include <cstring>
#include <ctime>

#include "absl/strings/str_cat.h"

namespace cairn::year {
namespace {

double ThreadMicros() {
  timespec now = {};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return 1e6 * static_cast<double>(now.tv_sec) + 1e-3 * static_cast<double>(now.tv_nsec);
}

}  // namespace

// --- the journal

void Journal::Append(const std::vector<Fact>& facts) {
  for (const Fact& fact : facts) {
    const std::string encoded = EncodeFact(fact);
    const auto length = static_cast<uint32_t>(encoded.size());
    bytes_.append(reinterpret_cast<const char*>(&length), sizeof(length));
    bytes_ += encoded;
  }
}

void Journal::Switch(const std::vector<Fact>& snapshot) {
  bytes_.clear();
  Append(snapshot);
  snapshot_ = bytes_.size();
}

std::vector<Fact> Journal::Read() const {
  std::vector<Fact> facts;
  for (size_t at = 0; at < bytes_.size();) {
    uint32_t length = 0;
    std::memcpy(&length, bytes_.data() + at, sizeof(length));
    at += sizeof(length);
    facts.push_back(**DecodeFact(absl::string_view(bytes_).substr(at, length)));
    at += length;
  }
  return facts;
}

// --- entering the engine

Node::Node(const engine::Options& options, Storage* storage)
    : options_(options), storage_(*storage) {
  Start({});
}

void Node::Start(engine::Recovered recovered) {
  engine::Outcome outcome;
  {
    const InEngine in;
    engine_ = std::make_unique<engine::Engine>(options_);
    // Copied, so that what the engine keeps of it is counted.
    outcome = engine_->Start(now_, unix_ms(), engine::Recovered(recovered));
  }
  Carry(std::move(outcome));
  ApplyAll();
  SeeStorage();
}

void Node::Apply(Event event) {
  pending_.push_back(std::move(event));
  ApplyAll();
}

void Node::ApplyAll() {
  while (!pending_.empty()) {
    Event next = std::move(pending_.front());
    pending_.pop_front();
    ApplyOne(std::move(next));
  }
}

void Node::MakeRoom(const Event& event) {
  engine_->SetJournalRoom(journal_.used(), Journal::kHalf);
  const auto help = engine_->JournalHelpFor(event);
  if (help == engine::Engine::JournalHelp::kNone) return;
  ++counters_["journal made room"];
  journal_.Switch(engine_->Snapshot());
  engine_->SetJournalRoom(journal_.used(), Journal::kHalf);
}

void Node::ApplyOne(Event event) {
  MakeRoom(event);
  const bool timed = ++work_.events % kTimedEvery == 0;
  const bool is_call = std::visit(
      [](const auto& e) {
        return requires { e.caller; };
      },
      event);
  const uint64_t allocations = EngineHeap().allocations;
  const double start = timed ? ThreadMicros() : 0;
  engine::Outcome outcome;
  {
    const InEngine in;
    outcome = engine_->Apply(now_, std::move(event));
  }
  const double us = timed ? ThreadMicros() - start : 0;
  work_.us += us;
  if (timed && is_call) work_.calls_us.push_back(static_cast<float>(us));
  work_.allocations += EngineHeap().allocations - allocations;
  Carry(std::move(outcome));
}

void Node::Carry(engine::Outcome outcome) {
  journal_.Append(outcome.facts);
  if (journal_.WantsSnapshot()) journal_.Switch(engine_->Snapshot());
  for (const Fact& fact : outcome.facts) {
    if (std::holds_alternative<fact::JobForgotten>(fact)) ++counters_["jobs forgotten"];
    if (std::holds_alternative<fact::AttemptBegun>(fact)) ++counters_["lives begun or settled"];
  }
  for (engine::Action& any : outcome.actions) std::visit([this](auto& a) { Do(a); }, any);
}

void Node::Pass(MonotonicNanos by) {
  const MonotonicNanos until = now_ + by;
  for (;;) {
    const MonotonicNanos persist = persists_.empty() ? until + 1 : persists_.begin()->first;
    const MonotonicNanos wake = wake_at_ == 0 ? until + 1 : wake_at_;
    const MonotonicNanos next = std::min(persist, wake);
    if (next > until) break;
    now_ = std::max(now_, next);
    if (persist <= wake) {
      EndPersist();
    } else {
      wake_at_ = 0;
      Apply(event::Tick{});
    }
  }
  now_ = until;
}

StatusOr<reply::Body> Node::Answer(Event event, RequestId request) {
  awaited_ = request;
  answer_.reset();
  Apply(std::move(event));
  for (int i = 0; answer_ == nullptr && i < 1000; ++i) Pass(kNanosPerSecond);
  awaited_ = 0;
  if (answer_ == nullptr) return absl::InternalError("a call was never answered");
  return *std::move(answer_);
}

Work Node::TakeWork() { return std::exchange(work_, {}); }

// --- the daemon's death

std::map<PartKey, std::shared_ptr<const PartTable>> Node::Tables(
    const std::vector<Fact>& facts) const {
  std::map<PartKey, fact::PartCommitted> committed;
  for (const Fact& any : facts) {
    if (const auto* fact = std::get_if<fact::PartCommitted>(&any)) committed[fact->part] = *fact;
    if (const auto* fact = std::get_if<fact::PartDropped>(&any)) committed.erase(fact->part);
  }
  std::map<PartKey, std::shared_ptr<const PartTable>> tables;
  for (const auto& [part, fact] : committed) {
    const auto record = records_.find({fact.extent.slab, fact.extent.offset});
    if (record == records_.end()) continue;
    auto table = DecodePartRecord(record->second, fact.bytes);
    if (table.ok()) tables[part] = *std::move(table);
  }
  return tables;
}

int64_t Node::LineageEntries(const std::vector<Fact>& facts) const {
  size_t entries = 0;
  for (const Fact& any : facts) {
    const auto* begun = std::get_if<fact::AttemptBegun>(&any);
    const auto* decided = std::get_if<fact::LineDecided>(&any);
    if (begun != nullptr) entries += begun->lineage.entries.size();
    if (decided != nullptr) entries += decided->record.lineage.entries.size();
  }
  for (const auto& [part, table] : Tables(facts)) entries += table->head.lineage.entries.size();
  return static_cast<int64_t>(entries);
}

void Node::KillDaemon(bool persists_happen) {
  ++counters_["deaths of the daemon"];
  {
    const auto under_way = std::exchange(persists_, {});
    for (const auto& [at, persist] : under_way) {
      if (persists_happen) storage_.Publish(persist, unix_ms()).IgnoreError();
    }
  }
  pending_.clear();
  engine_.reset();
  wake_at_ = 0;
  now_ += kNanosPerSecond;
  engine::Recovered recovered;
  recovered.facts = journal_.Read();
  for (const auto& [slab, bytes] : keeper_) recovered.held_slabs.emplace_back(slab, bytes);
  recovered.live_sessions.assign(live_.begin(), live_.end());
  {
    const InEngine in;  // the engine shares them from now on
    recovered.tables = Tables(recovered.facts);
  }
  Start(std::move(recovered));
}

void Node::SeeStorage() {
  event::StorageSeen seen;
  seen.root = storage_.root;
  if (storage_.away) seen.root = absl::UnavailableError("storage: nothing stands at the root");
  Apply(std::move(seen));
}

// --- what the engine asks for

void Node::Do(action::Reply& a) {
  if (a.request != awaited_) return;
  answer_ = std::make_unique<StatusOr<reply::Body>>(std::move(a.body));
}

void Node::Do(action::MakeSlab& a) {
  keeper_[a.slab] = a.bytes;
  pending_.push_back(event::SlabMade{a.slab, absl::OkStatus()});
}

void Node::Do(action::DestroySlab& a) {
  keeper_.erase(a.slab);
  users_.Destroyed(a.slab);
  records_.erase(records_.lower_bound({a.slab, 0}), records_.lower_bound({a.slab + 1, 0}));
  pending_.push_back(event::SlabDestroyed{a.slab});
}

void Node::Do(action::ProbeSlab& a) { pending_.push_back(users_.Probe(a)); }

void Node::Do(action::WriteManifest& a) {
  std::string encoded = EncodeManifest(*a.table);
  std::string digest = ManifestDigest(encoded);
  records_[{a.extent.slab, a.extent.offset}] =
      EncodePartRecord(std::move(encoded), a.table->extents);
  pending_.push_back(event::ManifestWritten{a.part, a.extent, absl::OkStatus(), std::move(digest)});
}

void Node::Do(action::Verify& a) {
  pending_.push_back(event::Verified{a.verification, absl::OkStatus(), unix_ms()});
}

void Node::Do(action::Persist& a) {
  persists_.emplace(now_ + storage_.persist_takes, std::move(a));
}

void Node::EndPersist() {
  const action::Persist persist = std::move(persists_.begin()->second);
  persists_.erase(persists_.begin());
  event::Persisted persisted{persist.checkpoint, storage_.Publish(persist, unix_ms())};
  persisted.location = Location(absl::StrCat(persist.checkpoint.job, "/", persist.checkpoint.step));
  ++counters_[persisted.status.ok() ? "persisted" : "not persisted"];
  Apply(std::move(persisted));
}

void Node::Do(action::WriteLineRecord& a) {
  pending_.push_back(event::LineRecordWritten{a.record, storage_.Write(a.record, unix_ms())});
}

void Node::Do(action::DeleteFiles& a) {
  ++counters_[a.tombstone ? "files removed" : "files deleted by policy"];
  pending_.push_back(event::FilesDeleted{a.checkpoint, storage_.Delete(a)});
}

void Node::Do(action::ScanJob& a) {
  ++counters_["scans"];
  pending_.push_back(event::JobScanned{a.job, storage_.Scan(a.job, unix_ms()), kUid, kUid});
}

void Node::Do(action::ReadTables& a) {
  pending_.push_back(event::TablesRead{a.checkpoint, storage_.Read(a.checkpoint)});
}

void Node::Do(action::ReadLineNumbers& a) {
  pending_.push_back(event::LineNumbersRead{a.job, storage_.Numbers(a.job)});
}

// --- processes

SessionId Node::Hello(event::Hello hello) {
  hello.caller = From(0);
  hello.secret = "secret";
  hello.pid = ++last_pid_;
  hello.process = absl::StrCat("process-", last_pid_);
  hello.process.resize(kProcessTokenBytes, ' ');
  const RequestId request = hello.caller.request;
  const StatusOr<reply::Hello> answer = Ask<reply::Hello>(std::move(hello), request);
  if (!answer.ok()) {
    ++counters_[absl::StrCat("hello refused: ", answer.status().message())];
    return 0;
  }
  live_.insert(answer->session);
  return answer->session;
}

void Node::EndProcess(SessionId session) {
  users_.Died(session);
  live_.erase(session);
  Apply(event::SessionEnded{session});
}

}  // namespace cairn::year
