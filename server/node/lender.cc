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
  Lends operator()(const reply::Standing& standing) const {
    return absl::MakeConstSpan(&standing.lend, 1);
  }
  Lends operator()(const reply::Unmap&) const { return {}; }
  Lends operator()(const reply::Ok&) const { return {}; }
  Lends operator()(const reply::Hello&) const { return {}; }
  Lends operator()(const reply::Attempt&) const { return {}; }
  Lends operator()(const reply::Commit&) const { return {}; }
  Lends operator()(const reply::Chunk&) const { return {}; }
  Lends operator()(const reply::OpenStored&) const { return {}; }  // a file: Node::Open sends it
  Lends operator()(const reply::Elsewhere&) const { return {}; }
  Lends operator()(const reply::Latest&) const { return {}; }
  Lends operator()(const reply::Granted&) const { return {}; }
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
  ReachFailpoint(Failpoint::kNodeLend);
  const Status status = Send(session, lend);
  ReachFailpoint(Failpoint::kNodeLent);
  if (!status.ok()) gate_->Post(engine::event::LendFailed{lend.lease});
  return status;
}

// Our end of the description is closed when it returns: before the engine is told that the lease is free.
Status Lender::Send(SessionId session, const engine::Lend& lend) const {
  if (lend.mode != LeaseMode::kWrite) CAIRN_RETURN_IF_ERROR(sessions_->CheckTaken(session));
  CAIRN_ASSIGN_OR_RETURN(const UniqueFd fd, cache_->Lend(lend.slab, lend.lease, lend.mode));
  const FdLent lent{FdLent::What::kSlab, lend.lease, lend.slab, lend.slab_bytes};
  return sessions_->Push(session, lent, fd.get());
}

}  // namespace cairn::node
