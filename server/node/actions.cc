// What the node does about each kind of action. Both dispatches are over std::visit without a
// catch-all, so an action of a new kind does not compile until the node decides here what it does.
#include <utility>

#include "common/failpoint.h"
#include "common/manifest.h"
#include "glog/logging.h"
#include "server/cache/cache.h"
#include "server/engine/engine.h"
#include "server/node/granter.h"
#include "server/node/mover.h"
#include "server/node/node.h"
#include "server/node/persister.h"
#include "server/node/rows.h"
#include "server/node/storage_worker.h"
#include "server/node/verifier.h"

namespace cairn::node {

namespace action = engine::action;

// Starts an action while mu_ is held: hands it to a queue, or leaves it for OutsideLock.
class Node::UnderLock {
 public:
  UnderLock(Node* node, AfterUnlock* after) : node_(node), after_(after) {}

  // --- answers
  void operator()(action::Reply reply) ABSL_EXCLUSIVE_LOCKS_REQUIRED(node_->mu_) {
    const auto it = node_->outstanding_calls_.find(reply.request);
    if (it == node_->outstanding_calls_.end()) return;  // of a dead daemon's caller
    if (reply.body.ok()) {
      const auto* granted = std::get_if<engine::reply::Granted>(&*reply.body);
      if (granted != nullptr && node_->granter_ != nullptr) node_->granter_->Expect(granted->grant);
    }
    after_->answers.emplace_back(std::move(it->second),
                                 Answer{std::move(reply.body), reply.superseded_by});
    node_->outstanding_calls_.erase(it);
    if (node_->commits_.erase(reply.request) > 0 && node_->commits_.empty()) {
      node_->committed_.NotifyAll();
    }
  }
  void operator()(action::Drained) ABSL_EXCLUSIVE_LOCKS_REQUIRED(node_->mu_) {
    node_->drained_ = true;
    node_->drained_wake_.NotifyAll();
  }

  // --- to the cache, which outlives the node: its callbacks keep the gate
  void operator()(action::MakeSlab make) {
    if (node_->read_only_) return;  // no later daemon would know it
    const auto pages = !make.populate ? cache::Pages::kByWriting
                       : make.urgent  ? cache::Pages::kUrgently
                                      : cache::Pages::kInTurn;
    cache().Make(make.slab, make.bytes, make.use, pages,
                 [gate = node_->gate_, attached = node_->attached_.get(), slab = make.slab,
                  faulted = make.populate](Status status) {
                   if (attached != nullptr && faulted && status.ok()) {
                     gate->Run([&] { attached->Prepare(slab); });
                   }
                   gate->Post(engine::event::SlabMade{slab, std::move(status)});
                 });
  }
  void operator()(action::HurrySlab hurry) { cache().Hurry(hurry.slab); }
  void operator()(action::DestroySlab destroy) {
    if (node_->read_only_) return;  // it may hold what the unread facts are about
    node_->Destroy(destroy.slab);
  }

  // --- to other threads' queues
  void operator()(action::Verify verify) { node_->verifier_->Start(std::move(verify)); }
  void operator()(action::Persist persist) { node_->persister_->Start(std::move(persist)); }
  void operator()(action::Store store) {
    UniqueFd stream = node_->store_streams_.Take(store.session, store.stream);
    node_->persister_->Start(std::move(store), std::move(stream));
  }
  void operator()(action::WriteLineRecord write) {
    node_->storage_worker_->Start(std::move(write));
  }
  void operator()(action::Reinstate chosen) { node_->storage_worker_->Start(std::move(chosen)); }
  void operator()(action::DeleteFiles remove) {
    if (node_->read_only_) return;  // the unread facts may say to keep them
    node_->storage_worker_->Start(std::move(remove));
  }
  void operator()(action::ReadLineNumbers read) { node_->storage_worker_->Start(std::move(read)); }
  void operator()(action::ReadTables read) { node_->storage_worker_->Start(std::move(read)); }
  void operator()(action::ScanJob scan) { node_->storage_worker_->Start(std::move(scan)); }
  void operator()(action::Tell tell) {
    // What could not be journaled is in no second journal.
    const bool held = std::holds_alternative<engine::peer::RecordHeld>(tell.message);
    if (!held || !node_->read_only_) node_->links_.Tell(tell.rank, std::move(tell.message));
  }
  void operator()(action::BecomeLife life) { node_->BecomeLife(std::move(life.self)); }
  void operator()(action::Fetch fetch) {
    if (node_->mover_ != nullptr) return node_->mover_->Start(std::move(fetch));
    after_->actions.emplace_back(std::move(fetch));
  }
  void operator()(const action::FetchFrom& from) {
    if (node_->mover_ != nullptr) node_->mover_->From(from);
  }
  void operator()(action::CancelFetch cancel) {
    if (node_->mover_ != nullptr) node_->mover_->Cancel(cancel.fetch);
  }
  void operator()(action::RevokeGrant revoke) {
    if (node_->granter_ != nullptr) node_->granter_->End(revoke.grant);
  }
  void operator()(action::WakeAt wake) { node_->timer_.Set(wake.at); }
  void operator()(action::Record record) ABSL_EXCLUSIVE_LOCKS_REQUIRED(node_->mu_) {
    if (record.everything) return node_->recorder_.Anew();
    if (record.read) node_->recorder_.Look(record.job);
    if (!node_->recorder_.Wanted()) return;
    node_->recorder_.Put(
        RowsOf(node_->engine_->Describe(record), node_->author_, &node_->row_sequence_));
  }

  // --- for this thread, once it has released mu_
  void operator()(action::WriteManifest write) { after_->actions.emplace_back(std::move(write)); }
  void operator()(action::ProbeSlab probe) { after_->actions.emplace_back(std::move(probe)); }
  void operator()(action::EndSession end) { after_->actions.emplace_back(end); }
  void operator()(action::Discard discard) { after_->actions.emplace_back(std::move(discard)); }
  void operator()(action::Log log) { after_->actions.emplace_back(std::move(log)); }

 private:
  cache::Cache& cache() { return *node_->rooms_.cache; }

  Node* const node_;
  AfterUnlock* const after_;
};

// Carries out an action that needs system calls or another lock, while mu_ is not held.
class Node::OutsideLock {
 public:
  explicit OutsideLock(Node* node) : node_(node) {}

  // Copying the entries and encoding them belong here too: nobody waits for what is done here but
  // the caller.
  void operator()(const action::WriteManifest& write) {
    ReachFailpoint(Failpoint::kNodeManifest);
    std::string encoded = EncodeManifest(*write.table);
    const std::string digest = ManifestDigest(encoded);
    const size_t manifest_bytes = encoded.size();
    std::string record = EncodePartRecord(std::move(encoded), write.table->extents);
    SealPartRecord({node_->record_secret_, write.extent.slab, write.extent.offset}, manifest_bytes,
                   write.owner_gid, &record);
    Status status = cache().Write(write.extent.slab, write.extent.offset, record);
    ReachFailpoint(Failpoint::kNodeManifestWritten);
    node_->Post(
        engine::event::ManifestWritten{write.part, write.extent, std::move(status), digest});
  }

  // Of a node without a transport.
  void operator()(const action::Fetch& fetch) {
    node_->Post(engine::event::Fetched{
        fetch.fetch, absl::UnavailableError("this node has no way to other members")});
  }

  void operator()(const action::ProbeSlab& probe) {
    engine::event::SlabProbed probed;
    probed.slab = probe.slab;
    for (LeaseId lease : probe.leases) {
      const StatusOr<bool> open = cache().LeaseOpen(probe.slab, lease);
      if (open.ok() && !*open) probed.ended.push_back(lease);
    }
    const StatusOr<bool> free = cache().Probe(probe.slab);
    probed.free = free.ok() && *free;
    if (!free.ok()) {
      LOG_EVERY_N(ERROR, 100) << "slab " << probe.slab << ": " << free.status();
    }
    node_->Post(std::move(probed));
  }

  void operator()(const action::EndSession& end) { node_->sessions_.End(end.session); }

  void operator()(const action::Discard&) {}  // freed with the action

  void operator()(const action::Log& log) {
    switch (log.severity) {
      case engine::Severity::kInfo:
        LOG(INFO) << log.message;
        return;
      case engine::Severity::kWarning:
        LOG(WARNING) << log.message;
        return;
      case engine::Severity::kError:
        LOG(ERROR) << log.message;
        return;
    }
  }

 private:
  cache::Cache& cache() { return *node_->rooms_.cache; }

  Node* const node_;
};

void Node::StartActions(std::vector<engine::Action> actions, AfterUnlock* after) {
  UnderLock start(this, after);
  for (engine::Action& any : actions) std::visit(start, std::move(any));
}

void Node::Finish(AfterUnlock after) {
  for (auto& [done, answer] : after.answers) {
    ReachFailpoint(Failpoint::kNodeReply);
    done(std::move(answer));
  }
  OutsideLock carry_out(this);
  for (const ActionOutsideLock& any : after.actions) std::visit(carry_out, any);
}

}  // namespace cairn::node
