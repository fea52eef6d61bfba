#include "tests/year/trainer.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/checksum.h"

namespace cairn::year {

Trainer::Trainer(Node* node, Rng* rng, std::string job, Shape shape)
    : node_(*node), rng_(*rng), job_(std::move(job)), shape_(std::move(shape)) {}

// --- lives

void Trainer::Begin(const JobPolicy& policy) {
  for (Writer writer = 0; writer < shape_.writers; ++writer) {
    event::Hello hello;
    hello.job = job_;
    hello.writer = writer;
    hello.world_size = shape_.writers;
    hello.local_writers = shape_.writers;
    hello.policy = policy;
    sessions_.push_back(node_.Hello(std::move(hello)));
    unmapped_.emplace_back();
  }
  const engine::Caller caller = node_.From(session());
  const event::ChooseAttempt choose{caller, job_, node_.Soon(), node_.unix_ms()};
  const auto chosen = node_.Ask<reply::Attempt>(choose, caller.request);
  attempt_ = chosen.ok() ? chosen->attempt : std::max(attempt_ + 1, node_.unix_ms());
  revision_ = 0;
  aborted_ = 0;
  ChooseStep();
  Count("lives");
}

// From the latest, or, to try something else, from an older one.
void Trainer::ChooseStep() {
  const StatusOr<reply::Latest> latest = Latest();
  if (!latest.ok()) {
    if (absl::IsNotFound(latest.status())) next_ = 0;
    return;
  }
  next_ = latest->key.step + 1;
  const uint64_t way = rng_.Below(3);
  if (way == 0) return;  // without a word
  Step from = latest->key.step;
  if (way == 2) from -= static_cast<Step>(rng_.Between(1, 3));
  const engine::Caller caller = node_.From(session());
  const event::ResumeFrom resume{caller, job_, attempt_, from, node_.Soon()};
  if (!node_.Ask<reply::Latest>(resume, caller.request).ok()) return;  // it is not there any more
  next_ = from + 1;
  Count(way == 1 ? "resumed from the latest" : "went back");
}

void Trainer::End() {
  for (SessionId session : sessions_) node_.EndProcess(session);
  sessions_.clear();
  unmapped_.clear();
}

// --- a step

std::string Trainer::Name(Writer writer, size_t object) {
  return absl::StrCat("rank", writer, "/object.", object);
}

Status Trainer::Create(Writer writer) {
  for (int round = 0; round < 8; ++round) {
    event::Create create;
    create.caller = node_.From(sessions_[writer]);
    create.call = node_.next_call();
    create.part = Part(writer);
    create.world_size = shape_.writers;
    create.deadline = node_.Soon();
    for (size_t i = 0; i < shape_.objects.size(); ++i) {
      create.objects.push_back({Name(writer, i), shape_.objects[i]});
    }
    create.unmapped = std::exchange(unmapped_[writer], {});
    const RequestId request = create.caller.request;
    const auto granted = node_.Ask<reply::Create>(std::move(create), request);
    if (!granted.ok()) return granted.status();
    for (const engine::Lend& lend : granted->lend) node_.users().Map(lend.slab, sessions_[writer]);
    for (SlabId slab : granted->retire) {
      node_.users().Unmap(slab, sessions_[writer]);
      unmapped_[writer].push_back(slab);
    }
    if (!granted->extents.empty()) return absl::OkStatus();
  }
  return absl::InternalError("told to unmap again and again");
}

std::vector<event::Seal> Trainer::Seals(Writer writer) const {
  std::vector<event::Seal> seals;
  for (size_t i = 0; i < shape_.objects.size(); ++i) {
    const uint64_t length = shape_.objects[i];
    event::Seal seal{Name(writer, i), length, {}, {{0, length}}};
    seal.block_crcs.assign(BlockCount(length, kBlockBytes), 7);
    seals.push_back(std::move(seal));
  }
  return seals;
}

Status Trainer::Commit(Writer writer, bool seal_apart) {
  event::Commit commit;
  commit.seals = Seals(writer);
  if (seal_apart) {
    event::SealObjects seals{node_.From(sessions_[writer]), node_.next_call(), Part(writer), {}};
    seals.seals = std::exchange(commit.seals, {});
    const RequestId request = seals.caller.request;
    CAIRN_RETURN_IF_ERROR(node_.Answer(std::move(seals), request).status());
  }
  commit.caller = node_.From(sessions_[writer]);
  commit.call = node_.next_call();
  commit.part = Part(writer);
  commit.world_size = shape_.writers;
  commit.unmapped = std::exchange(unmapped_[writer], {});
  commit.unix_ms = node_.unix_ms();
  const RequestId request = commit.caller.request;
  return node_.Answer(std::move(commit), request).status();
}

bool Trainer::Save(const Mishaps& mishaps, bool kill_daemon) {
  ++saves_;
  const bool seal_apart = rng_.Permille(mishaps.seal_apart);
  const bool abort = rng_.Permille(mishaps.abort), die = rng_.Permille(mishaps.die);
  for (Writer writer = 0; writer < shape_.writers; ++writer) {
    const Status created = Create(writer);
    if (created.ok()) continue;
    Count(absl::StrCat("create refused: ", absl::StatusCodeToString(created.code())));
    if (!absl::IsResourceExhausted(created)) return false;
    ++next_;
    return true;
  }
  if (kill_daemon) node_.KillDaemon(rng_.Permille(500));
  if (die) return false;
  for (Writer writer = 0; writer < shape_.writers; ++writer) {
    if (abort && writer == shape_.writers - 1) {
      event::Abort gone{node_.From(sessions_[writer]), Part(writer)};
      node_.Apply(std::move(gone));
      Count("aborted");
      ++aborted_;
      continue;
    }
    const Status committed = Commit(writer, seal_apart);
    if (committed.ok()) continue;
    Count(absl::StrCat("commit refused: ", committed.ToString().substr(0, 60)));
    return false;
  }
  Count("saved");
  if (!abort && rng_.Permille(mishaps.twice)) {
    ++revision_;
    return true;  // the same step once more
  }
  revision_ = 0;
  ++next_;
  return true;
}

// --- what its owner asks and says

void Trainer::SetPolicy(const JobPolicy& policy) {
  const engine::Caller caller = node_.From(session());
  const Status set = node_.Answer(event::SetPolicy{caller, job_, policy}, caller.request).status();
  if (!set.ok()) Count("policy refused");
}

StatusOr<reply::Latest> Trainer::Latest() {
  const engine::Caller caller = node_.From(session());
  return node_.Ask<reply::Latest>(event::Latest{caller, job_, node_.Soon()}, caller.request);
}

std::vector<CheckpointInfo> Trainer::List() {
  const engine::Caller caller = node_.From(session());
  auto list =
      node_.Ask<reply::List>(event::List{caller, job_, "", 1000, node_.Soon()}, caller.request);
  return list.ok() ? list->checkpoints : std::vector<CheckpointInfo>();
}

Step Trainer::Oldest(size_t spare) {
  const std::vector<CheckpointInfo> all = List();
  return all.size() <= spare ? kNoStep : all.front().key.step;
}

}  // namespace cairn::year
