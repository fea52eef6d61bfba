// What status shows: the engine's own answer, and beside it what sessions, cache, storage, journal
// and catalog know.
#include <unistd.h>

#include <map>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "server/cache/cache.h"
#include "server/node/attached.h"
#include "server/node/background_gate.h"
#include "server/node/journal_writer.h"
#include "server/node/mappers.h"
#include "server/node/membership_loop.h"
#include "server/node/mover.h"
#include "server/node/node.h"
#include "server/node/storage_watch.h"
#include "server/storage/storage.h"
#include "server/storage/suspects.h"
#include "server/transport/transport.h"

namespace cairn::node {
namespace {

// Adds the processes that have a quarantined slab open or mapped. The engine knows sessions only;
// of others (a forked child, say) only the kernel does.
void AddMappers(cache::Cache* cache, std::vector<engine::reply::Quarantined>* quarantined) {
  std::map<SlabId, uint64_t> inodes;
  std::set<uint64_t> wanted;
  for (const engine::reply::Quarantined& slab : *quarantined) {
    const StatusOr<uint64_t> inode = cache->Inode(slab.slab);
    if (!inode.ok()) continue;
    inodes[slab.slab] = *inode;
    wanted.insert(*inode);
  }
  const std::map<uint64_t, std::set<int32_t>> mappers = FindMappers(wanted);
  for (engine::reply::Quarantined& slab : *quarantined) {
    const auto inode = inodes.find(slab.slab);
    if (inode == inodes.end()) continue;
    const auto found = mappers.find(inode->second);
    if (found == mappers.end()) continue;
    std::set<int32_t> pids(slab.pids.begin(), slab.pids.end());
    pids.insert(found->second.begin(), found->second.end());
    slab.pids.assign(pids.begin(), pids.end());
  }
}

std::string LeavingText(const engine::reply::Status& status) {
  if (status.only_here_count == 0) return "draining: nothing is only here";
  return absl::StrCat("draining: ", status.only_here_count,
                      " checkpoints are only here: ", absl::StrJoin(status.only_here, ", "));
}

}  // namespace

StatusOr<NodeState> Node::State(const engine::Caller& caller) {
  // Who started the daemon sees what it holds, as root does.
  const bool of_all = options_.engine.Unlimited(caller.uid);
  Answer answer = Call(engine::event::Status{caller, of_all});
  if (!answer.body.ok()) return answer.body.status();
  auto* status = std::get_if<engine::reply::Status>(&*answer.body);
  if (status == nullptr) return absl::InternalError("status was answered with something else");
  NodeState state;
  state.engine = std::move(*status);
  state.now = rooms_.clock->Now();
  state.started_unix_ms = started_unix_ms_;
  state.restarts = restarts_;
  {
    MutexLock lock(&mu_);
    state.state = !safe_mode_.empty()                     ? absl::StrCat("safe mode: ", safe_mode_)
                  : draining_                             ? "draining"
                  : !state.engine.ring.superseded.empty() ? state.engine.ring.superseded
                  : state.engine.leaving                  ? LeavingText(state.engine)
                                                          : "serving";
    if (!lost_.empty()) absl::StrAppend(&state.state, "; facts were lost: ", lost_);
    state.engine.counters["journal_used_bytes"] = static_cast<int64_t>(journal_->used_bytes());
    if (rooms_.background != nullptr) {
      state.engine.counters["background_waited_ms"] = rooms_.background->waited_ms();
    }
    state.engine.counters["waiting_calls"] = static_cast<int64_t>(outstanding_calls_.size());
  }
  AddRingProblems(&state);
  AddSessions(&state);
  AddMappers(rooms_.cache, &state.engine.quarantined);
  AddCounters(&state);
  AddSetAside(of_all, &state);
  state.catalog = recorder_.State();
  return state;
}

StatusOr<IndexAnswer> Node::AskIndex(IndexQuestion question, MonotonicNanos deadline) const {
  question.sees_all = options_.engine.Unlimited(question.uid);
  return index_->Ask(question, deadline);
}

void Node::AddRingProblems(NodeState* state) {
  if (MembershipLoop* const membership = membership_; membership != nullptr) {
    state->view = membership->View();
    const std::string problem = membership->Problem();
    const bool unranked = options_.engine.ring.rank == engine::kNoRank;
    if (unranked && state->state == "serving") {
      state->state = absl::StrCat("unranked: ", problem);
    } else if (!problem.empty()) {
      absl::StrAppend(&state->state, "; ", problem);
    }
  }
  if (const std::string problem = links_.Problem(); !problem.empty()) {
    absl::StrAppend(&state->state, "; ", problem);
  }
  if (rooms_.transport == nullptr) return;
  if (const std::string problem = rooms_.transport->Problem(); !problem.empty()) {
    absl::StrAppend(&state->state, "; other members cannot read its memory: ", problem);
  }
}

void Node::AddSessions(NodeState* state) const {
  for (engine::reply::SessionStatus& session : state->engine.sessions) {
    SessionState shown;
    if (std::optional<SessionInfo> info = sessions_.Find(session.session)) {
      shown.connected_unix_ms = info->connected_unix_ms;
    }
    if (std::optional<ProgressPage> page = sessions_.Progress(session.session)) {
      shown.writing_step = static_cast<Step>(page->step);
      shown.writing_total = page->bytes_total;
      shown.writing_done = page->bytes_done;
    }
    shown.status = std::move(session);
    state->sessions.push_back(std::move(shown));
  }
  state->engine.sessions.clear();
}

// The jobs that are not read from storage. Who may see all is told of those, too, of which memory has
// nothing.
void Node::AddSetAside(bool of_all, NodeState* state) const {
  if (rooms_.suspects == nullptr) return;
  std::map<std::string, std::string> set_aside = rooms_.suspects->SetAside();
  state->engine.counters["jobs_set_aside"] = static_cast<int64_t>(set_aside.size());
  for (engine::reply::JobStatus& job : state->engine.jobs) {
    const auto found = set_aside.find(job.job);
    if (found != set_aside.end()) job.persist_problem = found->second;
  }
  if (!of_all || set_aside.empty()) return;
  constexpr size_t kMostNamed = 3;
  size_t named = 0;
  absl::StrAppend(&state->state, "; not read from storage: ");
  for (const auto& [job, why] : set_aside) {
    if (named == kMostNamed) break;
    absl::StrAppend(&state->state, named++ == 0 ? "" : "; ", "job ", job, ": ", why);
  }
  if (set_aside.size() > kMostNamed) {
    absl::StrAppend(&state->state, "; and ", set_aside.size() - kMostNamed, " more");
  }
}

void Node::AddCounters(NodeState* state) const {
  const auto put = [state](const char* name, uint64_t value) {
    state->engine.counters[name] = static_cast<int64_t>(value);
  };
  const cache::Counters cache = rooms_.cache->counters();
  put("slabs_made", cache.slabs_made);
  put("slabs_destroyed", cache.slabs_destroyed);
  put("bytes_faulted", cache.bytes_faulted);
  put("lends", cache.lends);
  put("probes", cache.probes);
  put("bad_reads", cache.bad_reads);
  if (mover_ != nullptr) {
    const Mover::Counters fetches = mover_->counters();
    put("parts_fetched", fetches.fetched);
    put("bytes_fetched", fetches.bytes);
    put("bytes_kept_of_fetches", fetches.kept_bytes);
    put("bad_blocks_fetched", fetches.bad_blocks);
    put("failed_fetch_reads", fetches.failed_reads);
    put("slabs_attached", attached_->count());
    const transport::Traffic traffic = rooms_.transport->traffic();
    put("bytes_read_over_tcp", traffic.tcp_bytes);
    put("bytes_read_over_rdma", traffic.rdma_bytes);
    put("rdma_left_out", traffic.rdma_left_out);
    put("rdma_rails_left_out", traffic.rdma_rails_left_out);
    put("rdma_grants_left_out", traffic.rdma_grants_left_out);
  }
  if (rooms_.storage == nullptr) return;
  constexpr MonotonicNanos kSlow = 5 * kNanosPerSecond;
  if (const MonotonicNanos silent = storage_watch_->LookingFor();
      silent > kSlow && state->engine.storage_problem.empty()) {
    state->engine.storage_problem =
        absl::StrCat("it has not answered for ", silent / kNanosPerSecond, " s");
  }
  const storage::Counters storage = rooms_.storage->counters();
  put("files_written", storage.objects_written);
  put("file_bytes_written", storage.bytes_written);
  put("fsync_failures", storage.sync_failures);
  put("file_rewrites", storage.rewrites);
  put("published", storage.published);
  for (const std::string& weakness : storage.weaknesses) {
    absl::StrAppend(&state->state, "; storage ", weakness);
  }
}

}  // namespace cairn::node
