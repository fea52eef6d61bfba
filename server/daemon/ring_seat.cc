#include "server/daemon/ring_seat.h"

#include <fcntl.h>

#include <algorithm>
#include <utility>

#include "server/catalog/ring_table.h"
#include "server/daemon/catalog_opener.h"
#include "server/daemon/ring_options.h"
#include "server/journal/journal.h"
#include "server/rpc/peer_probe.h"

namespace cairn::daemon {
namespace {

node::OpenRing RingOpener(const Options& options) {
  const std::string file = options.mysql_password_file;
  return
      [mysql = options.Mysql(), file]() mutable -> StatusOr<std::unique_ptr<catalog::RingTable>> {
        if (!file.empty()) {
          CAIRN_ASSIGN_OR_RETURN(mysql.password, ReadPasswordFile(file));
        }
        return catalog::OpenMysqlRing(mysql);
      };
}

engine::MembershipOptions MembershipOf(const Options& options, engine::Rank wanted) {
  engine::MembershipOptions membership;
  membership.wanted = wanted;
  membership.address = options.ring_address;
  membership.size = options.ring_size;
  membership.new_instance = &node::MembershipLoop::NewInstance;
  membership.still = options.ring_takeover_after_seconds * kNanosPerSecond;
  membership.beat = std::min(membership.beat, membership.still / 5);
  membership.gap = std::min(membership.gap, membership.still / 2);
  // A statement waits for a lock no longer than half of what a call may take (mysql_session.cc).
  constexpr int kBeyondS = 15;
  membership.uncertain = (options.mysql.call_timeout_s / 2 + kBeyondS) * kNanosPerSecond;
  return membership;
}

}  // namespace

StatusOr<fact::RingSeat> SeatIn(const UniqueFd& journal, const Options& options) {
  fact::RingSeat seat;
  UniqueFd mine(::fcntl(journal.get(), F_DUPFD_CLOEXEC, 0));
  if (!mine.valid()) return ErrnoStatus(errno, "journal");
  journal::Contents contents;
  CAIRN_ASSIGN_OR_RETURN(const std::unique_ptr<journal::Journal> opened,
                         journal::Journal::Open(std::move(mine), options.node.journal, &contents));
  for (const Fact& any : contents.facts) {
    if (const auto* told = std::get_if<fact::RingSeat>(&any)) seat = *told;
  }
  // The next daemon of this keeper goes on under the name that this one tells the journal before it claims anything.
  if (seat.instance.empty()) seat.instance = node::MembershipLoop::NewInstance();
  return seat;
}

RingSeat::RingSeat(const Options& options, engine::Rank wanted, const fact::RingSeat& seat,
                   node::Node* node, std::function<void(const std::string& why)> replace)
    : node_(node), replace_(std::move(replace)) {
  const rpc::PeersOptions peers = PeersOf(options, "");
  loop_ = std::make_unique<node::MembershipLoop>(
      MembershipOf(options, wanted), seat, options.node.engine.ring, RingOpener(options),
      [peers](const std::string& address, engine::Rank rank) {
        return rpc::SomebodyAnswers(peers, address, rank);
      },
      RealClock(), this);
}

void RingSeat::Start() {
  node_->SetMembership(loop_.get());
  // The journal may know of a greater incarnation than the seat, and the engine may have taken one just now.
  loop_->Became(node_->Self().incarnation);
  loop_->Start();
}

// With the rank goes the right to write what the catalog has not got yet.
bool RingSeat::NothingIsOnlyHere() {
  constexpr int kFlushMs = 500;
  if (!node_->NothingIsOnlyHere()) return false;
  node_->FlushCatalog(kFlushMs);
  return true;
}

void RingSeat::Stop() {
  loop_->Stop();
  node_->SetMembership(nullptr);
}

}  // namespace cairn::daemon
