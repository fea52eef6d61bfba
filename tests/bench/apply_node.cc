#include "tests/bench/apply_node.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
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
    : LoneNode(options, &files_), meter_(meter) {
  engine_ = std::make_unique<engine::Engine>(options);
  Carry(engine_->Start(now_, unix_ms(), {}));
  SeeStorage();
}

engine::Outcome ApplyNode::Enter(Event event) {
  now_ += kEventTakes;
  if (!measuring_) return engine_->Apply(now_, std::move(event));
  if (++events_ % kSpinEvery == 0) Spin();
  const std::string kind = KindOf(event);
  const double start = ThreadMicros();
  engine::Outcome outcome = engine_->Apply(now_, std::move(event));
  meter_->Add(kind, ThreadMicros() - start);
  return outcome;
}

void ApplyNode::Spin() {
  const double start = ThreadMicros();
  volatile uint64_t word = 1;
  for (int i = 0; i < kSpinTurns; ++i) word = word + 1;
  meter_->Add("(a loop)", ThreadMicros() - start, /*aside=*/true);
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
  const event::Status status{From(Client{})};
  return *Ask<reply::Status>(status, status.caller.request);
}

void ApplyNode::Answered(const action::Reply& a) {
  if (a.body.ok()) return;
  ++refused_;
  last_refusal_ = std::string(a.body.status().message());
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
  hello.job = client->job;
  hello.attempt = client->attempt;
  hello.writer = client->writer;
  hello.world_size = client->world_size;
  hello.local_writers = std::max(client->world_size, 1);
  hello.policy = client->policy;
  const StatusOr<SessionId> session = Connect(std::move(hello));
  if (!session.ok()) {
    std::fprintf(stderr, "hello was refused: %s\n", session.status().ToString().c_str());
    std::abort();
  }
  client->session = *session;
  client->unmapped.clear();
}

event::Seal ApplyNode::SealOf(const std::string& name) {
  return {name, kObjectBytes, {7}, {{0, kObjectBytes}}};
}

void ApplyNode::Create(Client* client, Step step, const std::vector<std::string>& names,
                       size_t begin, size_t end) {
  for (int round = 0; round < 8; ++round) {
    event::Create create;
    create.caller = From(*client);
    create.call = next_call();
    create.part = {{client->job, step, client->attempt, 0}, client->writer};
    create.world_size = client->world_size;
    create.deadline = Soon();
    create.objects.reserve(end - begin);
    for (size_t i = begin; i < end; ++i) create.objects.push_back({names[i], kObjectBytes});
    create.unmapped = std::exchange(client->unmapped, {});
    const RequestId request = create.caller.request;
    const StatusOr<reply::Create> granted = Ask<reply::Create>(std::move(create), request);
    if (!granted.ok()) return;  // refused, which is counted, or it waits for room
    for (const engine::Lend& lend : granted->lend) users_.Map(lend.slab, client->session);
    for (SlabId slab : granted->retire) {
      client->unmapped.push_back(slab);
      users_.Unmap(slab, client->session);
    }
    if (!granted->extents.empty()) return;
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
    event::SealObjects seals{From(*client), next_call(), part, {}};
    const size_t end = std::min(next + batch, next < sealed ? sealed : names.size());
    for (; next < end; ++next) seals.seals.push_back(SealOf(names[next]));
    Apply(std::move(seals));
  }
  event::Commit commit;
  commit.caller = From(*client);
  commit.call = next_call();
  commit.part = part;
  commit.world_size = client->world_size;
  for (; next < names.size(); ++next) commit.seals.push_back(SealOf(names[next]));
  commit.unmapped = std::exchange(client->unmapped, {});
  commit.unix_ms = unix_ms();
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
  const StatusOr<reply::Body> body = Answer(std::move(open), request);
  const auto* opened = body.ok() ? std::get_if<reply::Open>(&*body) : nullptr;
  if (opened == nullptr) return 0;
  users_.Lock(opened->lend.lease, opened->lend.slab, client.session);
  return opened->lend.lease;
}

void ApplyNode::Release(const Client& client, LeaseId lease) {
  users_.Unlock(lease);
  Apply(event::Release{From(client), {lease}});
}

}  // namespace cairn::bench
