#include "tests/year/node.h"

#include <cstring>

#include "absl/strings/str_cat.h"

namespace cairn::year {

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

Node::Node(const engine::Options& options, Storage* storage) : LoneNode(options, storage) {
  persist_takes = kNanosPerSecond;
  answers_within_s = 1000;
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
  Drain();
  SeeStorage();
}

void Node::MakeRoom(const Event& event) {
  engine_->SetJournalRoom(journal_.used(), Journal::kHalf);
  const auto help = engine_->JournalHelpFor(event);
  if (help == engine::Engine::JournalHelp::kNone) return;
  Count("journal made room");
  journal_.Switch(engine_->Snapshot());
  engine_->SetJournalRoom(journal_.used(), Journal::kHalf);
}

engine::Outcome Node::Enter(Event event) {
  MakeRoom(event);
  const bool timed = ++work_.events % kTimedEvery == 0;
  const bool is_call = std::visit(
      [](const auto& e) {
        return requires { e.caller; };
      },
      event);
  const uint64_t allocations = EngineHeap().allocations;
  const double start = timed ? world::ThreadMicros() : 0;
  engine::Outcome outcome;
  {
    const InEngine in;
    outcome = engine_->Apply(now_, std::move(event));
  }
  const double us = timed ? world::ThreadMicros() - start : 0;
  work_.us += us;
  if (timed && is_call) work_.calls_us.push_back(static_cast<float>(us));
  work_.allocations += EngineHeap().allocations - allocations;
  return outcome;
}

void Node::Keep(const std::vector<Fact>& facts) {
  journal_.Append(facts);
  if (journal_.WantsSnapshot()) journal_.Switch(engine_->Snapshot());
  for (const Fact& fact : facts) {
    if (std::holds_alternative<fact::JobForgotten>(fact)) Count("jobs forgotten");
    if (std::holds_alternative<fact::AttemptBegun>(fact)) Count("lives begun or settled");
  }
}

void Node::Destroyed(SlabId slab) {
  LoneNode::Destroyed(slab);
  keeper_.erase(slab);
  records_.erase(records_.lower_bound({slab, 0}), records_.lower_bound({slab + 1, 0}));
}

Status Node::WriteRecord(const action::WriteManifest& write, std::string manifest) {
  records_[{write.extent.slab, write.extent.offset}] =
      EncodePartRecord(std::move(manifest), write.table->extents);
  return absl::OkStatus();
}

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
  Count("deaths of the daemon");
  {
    const auto under_way = std::exchange(persists_, {});
    for (const auto& [at, end] : under_way) {
      if (persists_happen) end(absl::OkStatus());
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

// --- processes

SessionId Node::Hello(event::Hello hello) {
  const StatusOr<SessionId> session = Connect(std::move(hello));
  if (!session.ok()) {
    Count(absl::StrCat("hello refused: ", session.status().message()));
    return 0;
  }
  live_.insert(*session);
  return *session;
}

void Node::EndProcess(SessionId session) {
  live_.erase(session);
  Disconnect(session);
}

}  // namespace cairn::year
