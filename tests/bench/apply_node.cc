#include "tests/bench/apply_node.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"
#include "common/checksum.h"

namespace cairn::bench {
namespace {

// Every so many events a loop of a known length runs beside them: what the machine does to it, it
// does to the events.
constexpr uint64_t kSpinEvery = 16;
constexpr int kSpinTurns = 20'000;
// The clock of the engine goes on by this much with every event.
constexpr MonotonicNanos kEventTakes = 20'000;

template <typename T>
std::string TypeName() {
  absl::string_view name = __PRETTY_FUNCTION__;  // … [with T = cairn::engine::event::Hello; …]
  name.remove_prefix(name.find("T = ") + 4);
  name = name.substr(0, name.find_first_of(";]"));
  return std::string(name.substr(name.rfind(':') + 1));
}

// What an event names decides what it may cost, so those that name objects are told apart.
std::string KindOf(const Event& any) {
  return std::visit(
      []<typename E>(const E& e) {
        static const std::string name = TypeName<E>();
        if constexpr (std::is_same_v<E, event::Create>) {
          return absl::StrCat(name, " of ", e.objects.size());
        } else if constexpr (std::is_same_v<E, event::SealObjects> ||
                             std::is_same_v<E, event::Commit>) {
          return absl::StrCat(name, " of ", e.seals.size());
        } else if constexpr (std::is_same_v<E, event::List>) {
          return absl::StrCat(name, " of ", e.limit, " at most");
        } else {
          return name;
        }
      },
      any);
}

double Quantile(std::vector<float> values, double q) {
  if (values.empty()) return 0;
  const size_t at = std::min(values.size() - 1, static_cast<size_t>(q * values.size()));
  std::nth_element(values.begin(), values.begin() + at, values.end());
  return values[at];
}

}  // namespace

double ThreadMicros() {
  timespec now = {};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return 1e6 * static_cast<double>(now.tv_sec) + 1e-3 * static_cast<double>(now.tv_nsec);
}

// --- the meter

void Meter::Add(const std::string& kind, double us, bool aside) {
  Kind& at = kinds_[kind];
  at.us.push_back(static_cast<float>(us));
  at.aside = aside;
  if (aside) return;
  pass_.push_back(static_cast<float>(us));
  if (!kind.starts_with("Slab")) pass_calls_.push_back(static_cast<float>(us));
  if (us <= pass_worst_) return;
  pass_worst_ = us;
  pass_worst_kind_ = kind;
}

Meter::Figures Meter::EndPass() {
  const Figures figures{Quantile(pass_, 0.5), pass_worst_, Quantile(pass_calls_, 0.5),
                        pass_worst_kind_, pass_.size()};
  pass_.clear();
  pass_calls_.clear();
  pass_worst_ = 0;
  return figures;
}

double Meter::Worst(const std::string& kind) const {
  const auto at = kinds_.find(kind);
  if (at == kinds_.end()) return 0;
  return *std::max_element(at->second.us.begin(), at->second.us.end());
}

double Meter::Median(const std::string& kind) const {
  const auto at = kinds_.find(kind);
  return at == kinds_.end() ? 0 : Quantile(at->second.us, 0.5);
}

std::string Meter::Table() const {
  std::vector<std::pair<double, std::string>> lines;
  for (const auto& [name, kind] : kinds_) {
    const double worst = Worst(name);
    double sum = 0;
    for (float us : kind.us) sum += us;
    lines.emplace_back(
        -worst, absl::StrFormat("  %-26s %9d %10.1f %10.1f %11.1f %11.1f%s\n", name, kind.us.size(),
                                Quantile(kind.us, 0.5), Quantile(kind.us, 0.99), worst, sum / 1000,
                                kind.aside ? "  (no Apply)" : ""));
  }
  std::sort(lines.begin(), lines.end());
  std::string table = absl::StrFormat("  %-26s %9s %10s %10s %11s %11s\n", "event", "count",
                                      "p50 us", "p99 us", "worst us", "all ms");
  for (const auto& [worst, line] : lines) table += line;
  return table;
}

// --- entering the engine

ApplyNode::ApplyNode(const engine::Options& options, Meter* meter)
    : meter_(meter), engine_(std::make_unique<engine::Engine>(options)) {
  Carry(engine_->Start(now_, kUnix, {}));
  Apply(event::StorageSeen{RootIdentity{"root", "instance"}});
}

void ApplyNode::Apply(Event event) {
  pending_.push_back(std::move(event));
  for (;;) {
    while (!pending_.empty()) {
      Event next = std::move(pending_.front());
      pending_.pop_front();
      ApplyOne(std::move(next));
    }
    if (wake_at_ == 0 || wake_at_ > now_) return;
    wake_at_ = 0;
    pending_.push_back(event::Tick{});
  }
}

void ApplyNode::ApplyOne(Event event) {
  now_ += kEventTakes;
  if (!measuring_) return Carry(engine_->Apply(now_, std::move(event)));
  if (++events_ % kSpinEvery == 0) Spin();
  const std::string kind = KindOf(event);
  const double start = ThreadMicros();
  engine::Outcome outcome = engine_->Apply(now_, std::move(event));
  meter_->Add(kind, ThreadMicros() - start);
  Carry(std::move(outcome));
}

void ApplyNode::Spin() {
  const double start = ThreadMicros();
  volatile uint64_t word = 1;
  for (int i = 0; i < kSpinTurns; ++i) word = word + 1;
  meter_->Add("(a loop)", ThreadMicros() - start, /*aside=*/true);
}

void ApplyNode::Carry(engine::Outcome outcome) {
  facts_ += outcome.facts.size();
  for (engine::Action& any : outcome.actions) std::visit([this](auto& a) { Do(a); }, any);
}

void ApplyNode::Snapshot() {
  engine::SnapshotCursor cursor;
  while (!cursor.done()) {
    const double start = ThreadMicros();
    const std::vector<Fact> facts = engine_->SnapshotPiece(&cursor);
    meter_->Add("(Snapshot piece)", ThreadMicros() - start, /*aside=*/true);
  }
}

reply::Status ApplyNode::Status() {
  const Client nobody;
  const event::Status status{From(nobody)};
  awaited_.insert(status.caller.request);
  Apply(status);
  return std::get<reply::Status>(bodies_.extract(status.caller.request).mapped());
}

// --- what the engine asks for

void ApplyNode::Do(action::Reply& reply) {
  const auto asked = asking_.extract(reply.request);
  const bool awaited = awaited_.erase(reply.request) > 0;
  if (!reply.body.ok()) {
    ++refused_;
    last_refusal_ = std::string(reply.body.status().message());
    return;
  }
  if (!asked.empty()) {
    const Client& client = *asked.mapped();
    if (const auto* create = std::get_if<reply::Create>(&*reply.body)) {
      for (const engine::Lend& lend : create->lend) users_.Map(lend.slab, client.session);
    }
    if (const auto* open = std::get_if<reply::Open>(&*reply.body)) {
      users_.Lock(open->lend.lease, open->lend.slab, client.session);
    }
  }
  if (awaited) bodies_.emplace(reply.request, *std::move(reply.body));
}

void ApplyNode::Do(action::MakeSlab& a) {
  pending_.push_back(event::SlabMade{a.slab, absl::OkStatus()});
}

void ApplyNode::Do(action::DestroySlab& a) {
  users_.Destroyed(a.slab);
  pending_.push_back(event::SlabDestroyed{a.slab});
}

void ApplyNode::Do(action::ProbeSlab& a) { pending_.push_back(users_.Probe(a)); }

void ApplyNode::Do(action::WriteManifest& a) {
  std::string digest = ManifestDigest(EncodeManifest(*a.table));
  pending_.push_back(event::ManifestWritten{a.part, a.extent, absl::OkStatus(), std::move(digest)});
}

void ApplyNode::Do(action::Verify& a) {
  pending_.push_back(event::Verified{a.verification, absl::OkStatus(), UnixMillis()});
}

void ApplyNode::Do(action::Persist& a) {
  if (a.origin.has_value()) Record(*a.origin);
  auto& parts = storage_[a.checkpoint.job].checkpoints[a.checkpoint];
  parts.clear();
  parts = std::move(a.parts);
  pending_.push_back(
      event::Persisted{a.checkpoint, absl::OkStatus(),
                       Location(absl::StrCat(a.checkpoint.job, "/", a.checkpoint.step))});
}

LineRecord ApplyNode::Record(const LineRecord& record) {
  Storage& storage = storage_[record.job];
  storage.recorded_at.try_emplace(record.number, UnixMillis());
  return storage.records.try_emplace({record.number, record.kind}, record).first->second;
}

void ApplyNode::Do(action::WriteLineRecord& a) {
  LineRecord stands = Record(a.record);
  pending_.push_back(event::LineRecordWritten{a.record, std::move(stands)});
}

void ApplyNode::Do(action::DeleteFiles& a) {
  Storage& storage = storage_[a.checkpoint.job];
  storage.checkpoints.erase(a.checkpoint);
  if (a.tombstone) {
    const Attempt first = a.this_attempt ? a.checkpoint.attempt : 1;
    storage.removed.steps[a.checkpoint.step].Add(first, a.checkpoint.attempt);
  }
  pending_.push_back(event::FilesDeleted{a.checkpoint, absl::OkStatus()});
}

void ApplyNode::Do(action::ScanJob& a) {
  event::JobScanned scanned{a.job, absl::NotFoundError("no directory"), kUid, kUid};
  if (const auto at = storage_.find(a.job); at != storage_.end()) {
    StoredJob stored;
    for (const auto& [key, parts] : at->second.checkpoints) {
      StoredCheckpoint checkpoint;
      checkpoint.key = key;
      checkpoint.location = Location(absl::StrCat(key.job, "/", key.step));
      checkpoint.world_size = parts.front()->head.world_size;
      checkpoint.published = true;
      for (const auto& part : parts) {
        checkpoint.parts.push_back({part->Whole(), ManifestDigest(EncodeManifest(*part))});
        Summarize(&checkpoint.parts.back());
      }
      stored.checkpoints.push_back(std::move(checkpoint));
    }
    for (const auto& [id, record] : at->second.records) stored.records.push_back(record);
    stored.line = NumbersOf(stored.records);
    stored.removed = at->second.removed;
    stored.written_unix_ms = at->second.recorded_at;
    stored.now_unix_ms = UnixMillis();
    scanned.stored = std::move(stored);
  }
  pending_.push_back(std::move(scanned));
}

void ApplyNode::Do(action::ReadTables& a) {
  event::TablesRead read{a.checkpoint, StoredCheckpoint{}};
  for (const auto& part : storage_[a.checkpoint.job].checkpoints[a.checkpoint]) {
    read.stored->parts.push_back({part->Whole(), ManifestDigest(EncodeManifest(*part))});
  }
  pending_.push_back(std::move(read));
}

void ApplyNode::Do(action::ReadLineNumbers& a) {
  LineNumbers numbers;
  for (const auto& [id, record] : storage_[a.job].records) numbers.Take(id.first, id.second);
  pending_.push_back(event::LineNumbersRead{a.job, numbers});
}

// The node describes what the catalog is to be told under the same lock.
void ApplyNode::Do(action::Record& a) {
  const double start = ThreadMicros();
  const engine::Engine::Description description = engine_->Describe(a);
  if (measuring_) meter_->Add("(Describe)", ThreadMicros() - start, /*aside=*/true);
}

// --- clients

void ApplyNode::Hello(Client* client) {
  event::Hello hello;
  hello.caller = {++request_, 0, kUid, kUid};
  hello.secret = "secret";
  hello.process = absl::StrCat("process-", request_);
  hello.pid = static_cast<int32_t>(1000 + request_ % 30'000);
  hello.job = client->job;
  hello.attempt = client->attempt;
  hello.writer = client->writer;
  hello.world_size = client->world_size;
  hello.local_writers = std::max(client->world_size, 1);
  hello.policy = client->policy;
  const RequestId request = hello.caller.request;
  awaited_.insert(request);
  Apply(std::move(hello));
  const auto body = bodies_.extract(request);
  if (body.empty()) {
    std::fprintf(stderr, "hello was refused: %s\n", last_refusal_.c_str());
    std::abort();
  }
  client->session = std::get<reply::Hello>(body.mapped()).session;
  client->unmapped.clear();
}

void ApplyNode::End(const Client& client) {
  users_.Died(client.session);
  Apply(event::SessionEnded{client.session});
}

event::Seal ApplyNode::SealOf(const std::string& name) {
  return {name, kObjectBytes, {7}, {{0, kObjectBytes}}};
}

void ApplyNode::Create(Client* client, Step step, const std::vector<std::string>& names,
                       size_t begin, size_t end) {
  for (int round = 0; round < 8; ++round) {
    event::Create create;
    create.caller = From(*client);
    create.call = ++call_;
    create.part = {{client->job, step, client->attempt, 0}, client->writer};
    create.world_size = client->world_size;
    create.deadline = Soon();
    create.objects.reserve(end - begin);
    for (size_t i = begin; i < end; ++i) create.objects.push_back({names[i], kObjectBytes});
    create.unmapped = std::exchange(client->unmapped, {});
    const RequestId request = create.caller.request;
    asking_[request] = client;
    awaited_.insert(request);
    Apply(std::move(create));
    const auto body = bodies_.extract(request);
    if (body.empty()) return;  // refused, which is counted
    const auto& granted = std::get<reply::Create>(body.mapped());
    for (SlabId slab : granted.retire) {
      client->unmapped.push_back(slab);
      users_.Unmap(slab, client->session);
    }
    if (!granted.extents.empty()) return;
  }
}

void ApplyNode::Save(Client* client, Step step, const std::vector<std::string>& names, size_t batch,
                     size_t sealed) {
  for (size_t at = 0; at < names.size(); at += batch) {
    Create(client, step, names, at, std::min(at + batch, names.size()));
  }
  const PartKey part = {{client->job, step, client->attempt, 0}, client->writer};
  size_t next = 0;
  while (next < sealed || names.size() - next > batch) {
    event::SealObjects seals{From(*client), ++call_, part, {}};
    const size_t end = std::min(next + batch, next < sealed ? sealed : names.size());
    for (; next < end; ++next) seals.seals.push_back(SealOf(names[next]));
    Apply(std::move(seals));
  }
  event::Commit commit;
  commit.caller = From(*client);
  commit.call = ++call_;
  commit.part = part;
  commit.world_size = client->world_size;
  for (; next < names.size(); ++next) commit.seals.push_back(SealOf(names[next]));
  commit.unmapped = std::exchange(client->unmapped, {});
  commit.unix_ms = UnixMillis();
  Apply(std::move(commit));
}

LeaseId ApplyNode::Open(const Client& client, Step step, const std::string& name) {
  event::Open open;
  open.caller = From(client);
  open.ref.job = client.job;
  open.ref.step = step;
  open.name = name;
  open.deadline = Soon();
  const RequestId request = open.caller.request;
  awaited_.insert(request);
  asking_[request] = &client;
  Apply(std::move(open));
  const auto body = bodies_.extract(request);
  const auto* opened = body.empty() ? nullptr : std::get_if<reply::Open>(&body.mapped());
  return opened == nullptr ? 0 : opened->lend.lease;
}

void ApplyNode::Release(const Client& client, LeaseId lease) {
  users_.Unlock(lease);
  Apply(event::Release{From(client), {lease}});
}

}  // namespace cairn::bench
