#include "server/node/lender.h"

#include <utility>

#include "absl/types/span.h"
#include "common/failpoint.h"

namespace cairn::node {
namespace {

namespace reply = engine::reply;

// What each kind of reply lends. A new kind does not compile until it is decided here.
struct LendsOf {
  using Lends = absl::Span<const engine::Lend>;

  Lends operator()(const reply::Create& create) const { return create.lend; }
  Lends operator()(const reply::Open& open) const {
    if (open.lend.lease == 0) return {};
    return absl::MakeConstSpan(&open.lend, 1);
  }
  Lends operator()(const reply::Ok&) const { return {}; }
  Lends operator()(const reply::Hello&) const { return {}; }
  Lends operator()(const reply::Attempt&) const { return {}; }
  Lends operator()(const reply::Commit&) const { return {}; }
  Lends operator()(const reply::Chunk&) const { return {}; }
  Lends operator()(const reply::OpenStored&) const { return {}; }  // a file: Node::Open sends it
  Lends operator()(const reply::Latest&) const { return {}; }
  Lends operator()(const engine::CheckpointInfo&) const { return {}; }
  Lends operator()(const engine::ObjectInfo&) const { return {}; }
  Lends operator()(const reply::List&) const { return {}; }
  Lends operator()(const PolicyPreview&) const { return {}; }
  Lends operator()(const reply::Status&) const { return {}; }
};

}  // namespace

Status Lender::LendAll(SessionId session, const reply::Body& body) const {
  const LendsOf::Lends lends = std::visit(LendsOf(), body);
  if (lends.empty()) return absl::OkStatus();
  if (std::holds_alternative<reply::Open>(body)) {
    const std::optional<SessionInfo> info = sessions_->Find(session);
    // Such a session reads in chunks: the lease alone counts.
    if (info.has_value() && !info->takes_fds) return absl::OkStatus();
  }
  Status first;
  for (const engine::Lend& lend : lends) {
    if (first.ok()) {
      first = LendOne(session, lend);
    } else {
      gate_->Post(engine::event::LendFailed{lend.lease});
    }
  }
  return first;
}

Status Lender::LendOne(SessionId session, const engine::Lend& lend) const {
  Status status;
  {
    ReachFailpoint(Failpoint::kNodeLend);
    StatusOr<UniqueFd> fd = cache_->Lend(lend.slab, lend.lease, lend.mode);
    status = fd.status();
    if (fd.ok()) {
      const FdLent lent{FdLent::What::kSlab, lend.lease, lend.slab, lend.slab_bytes};
      status = sessions_->Push(session, lent, fd->get());
    }
    ReachFailpoint(Failpoint::kNodeLent);
  }  // closes our end of the description, before the engine is told that the lease is free
  if (!status.ok()) gate_->Post(engine::event::LendFailed{lend.lease});
  return status;
}

}  // namespace cairn::node
