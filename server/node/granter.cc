#include "server/node/granter.h"

#include <pthread.h>

#include <chrono>
#include <exception>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/failpoint.h"
#include "glog/logging.h"

namespace cairn::node {

using transport::ItsReads;

Granter::Granter(const GranterOptions& options, transport::Transport* transport, Attached* attached,
                 Clock* clock, std::function<void(engine::Event)> post)
    : options_(options),
      transport_(transport),
      attached_(attached),
      clock_(clock),
      post_(std::move(post)),
      thread_([this] { Run(); }) {}

Status Granter::Admit() {
  MutexLock lock(&mu_);
  if (stopping_) return absl::UnavailableError("the daemon is stopping");
  if (places_ >= options_.max_grants) {
    return absl::ResourceExhaustedError(
        absl::StrCat("grants: ", places_, " of at most ", options_.max_grants, " are in use"));
  }
  ++places_;
  return absl::OkStatus();
}

void Granter::Refused() {
  MutexLock lock(&mu_);
  --places_;
}

void Granter::Expect(uint64_t grant) {
  MutexLock lock(&mu_);
  grants_[grant];
}

StatusOr<engine::peer::GrantAnswer> Granter::Give(const engine::MemberId& reader, uint64_t grant,
                                                  const PartTable& table) {
  std::vector<ExtentRef> extents;
  StatusOr<engine::peer::GrantAnswer> answer = Describe(grant, table, &extents);
  if (!answer.ok()) {
    Finish(grant, nullptr, ItsReads::kHaveEnded);
    return answer;
  }
  const transport::GrantToken token = transport::NewGrantToken();
  const Status granted = transport_->Grant(token, PeerOf(reader), std::move(extents));
  if (!granted.ok()) {
    Finish(grant, nullptr, ItsReads::kHaveEnded);
    return granted;
  }
  if (!Given(reader, grant, token)) {
    Finish(grant, &token, ItsReads::kHaveEnded);  // nobody was told the token
    return absl::UnavailableError("the grant was revoked while it was being given");
  }
  answer->token.assign(token.begin(), token.end());
  return answer;
}

StatusOr<engine::peer::GrantAnswer> Granter::Describe(uint64_t grant, const PartTable& table,
                                                      std::vector<ExtentRef>* extents) {
  if (table.extents.size() != table.entries.size()) {
    return absl::NotFoundError("the part is not in memory");
  }
  engine::peer::GrantAnswer answer;
  answer.grant = grant;
  answer.valid_ms = options_.without_progress / kNanosPerMilli;
  answer.regions.resize(table.entries.size());
  for (size_t i = 0; i < table.entries.size(); ++i) {
    ExtentRef extent = table.extents[i];
    // The object alone: what its writer left behind it in the extent is nobody's to read.
    extent.length = table.entries[i]->length;
    if (extent.length == 0) continue;
    CAIRN_RETURN_IF_ERROR(attached_->Attach(extent.slab));
    CAIRN_ASSIGN_OR_RETURN(answer.regions[i].descriptor, transport_->Describe(extent));
    extents->push_back(extent);
  }
  answer.manifest = EncodeManifest(table);
  return answer;
}

bool Granter::Given(const engine::MemberId& reader, uint64_t grant,
                    const transport::GrantToken& token) {
  MutexLock lock(&mu_);
  State& state = grants_[grant];
  if (state.ending || stopping_) return false;
  state.reader = reader;
  state.token = token;
  state.given = true;
  state.look_at = clock_->Now() + options_.without_progress;
  looks_.emplace(state.look_at, grant);
  wake_.NotifyOne();
  return true;
}

void Granter::End(uint64_t grant) {
  MutexLock lock(&mu_);
  const auto at = grants_.find(grant);
  if (at != grants_.end()) EndLocked(grant, &at->second, ItsReads::kMayBeUnderWay);
}

void Granter::EndFor(const engine::MemberId& reader, EndedGrant ended) {
  MutexLock lock(&mu_);
  const auto at = grants_.find(ended.grant);
  if (at == grants_.end() || !at->second.given || at->second.reader != reader) return;
  EndLocked(ended.grant, &at->second, ended.reads);
}

void Granter::EndLocked(uint64_t grant, State* state, ItsReads reads) {
  if (state->ending) return;
  state->ending = true;
  state->reads = reads;
  if (!state->given) return;  // Give sees it
  looks_.erase({state->look_at, grant});
  state->look_at = 0;
  looks_.emplace(0, grant);
  wake_.NotifyOne();
}

size_t Granter::count() const {
  MutexLock lock(&mu_);
  return grants_.size();
}

// --- the thread

void Granter::Run() {
  pthread_setname_np(pthread_self(), "granter");
  try {
    std::pair<uint64_t, State> next;
    while (Next(&next)) LookAt(next.first, next.second);
  } catch (const std::exception& e) {
    // As an executor: without the event the engine would keep what the grant pinned for ever.
    LOG(FATAL) << "granter: " << e.what();
  }
}

bool Granter::Next(std::pair<uint64_t, State>* next) {
  MutexLock lock(&mu_);
  for (;;) {
    if (stopping_) return false;
    if (looks_.empty()) {
      wake_.Wait(&mu_);
      continue;
    }
    const auto [at, grant] = *looks_.begin();
    const MonotonicNanos left = at - clock_->Now();
    if (left <= 0) {
      looks_.erase(looks_.begin());
      *next = {grant, grants_.at(grant)};
      return true;
    }
    wake_.WaitUntil(&mu_, std::chrono::steady_clock::now() + std::chrono::nanoseconds(left));
  }
}

void Granter::LookAt(uint64_t grant, const State& state) {
  const StatusOr<MonotonicNanos> used = transport_->LastUsed(state.token);
  const MonotonicNanos until = used.ok() && !state.ending ? *used + options_.without_progress : 0;
  if (until <= clock_->Now()) return Finish(grant, &state.token, state.reads);
  MutexLock lock(&mu_);
  State& now = grants_.at(grant);
  now.look_at = now.ending ? 0 : until;
  looks_.emplace(now.look_at, grant);
}

void Granter::Finish(uint64_t grant, const transport::GrantToken* token, ItsReads reads) {
  ReachFailpoint(Failpoint::kRingRevoke);
  if (token != nullptr) transport_->Revoke(*token, reads);
  {
    MutexLock lock(&mu_);
    looks_.erase({0, grant});  // an End that came meanwhile
    grants_.erase(grant);
    --places_;
  }
  post_(engine::event::GrantEnded{grant});
}

void Granter::Stop() {
  {
    MutexLock lock(&mu_);
    if (stopping_) return;
    stopping_ = true;
    wake_.NotifyAll();
  }
  thread_.join();
  std::vector<transport::GrantToken> tokens;
  {
    MutexLock lock(&mu_);
    for (const auto& [grant, state] : grants_) {
      if (state.given) tokens.push_back(state.token);
    }
  }
  for (const transport::GrantToken& token : tokens) {
    transport_->Revoke(token, ItsReads::kMayBeUnderWay);
  }
}

}  // namespace cairn::node
