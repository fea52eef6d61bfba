#include "server/transport/choosing_transport.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "glog/logging.h"

namespace cairn::transport {
namespace {

// A grant beyond it asks RDMA again with each read.
constexpr size_t kMostGrantsLeftOut = 4096;

struct Addresses {
  std::string tcp, rdma;  // empty: it has none
};

Addresses AddressesIn(const std::string& address) {
  const size_t at = address.find(';');
  if (at == std::string::npos) return {address, ""};
  return {address.substr(0, at), address.substr(at + 1)};
}

// Whether the same read may go well over another back end.
bool MayGoOtherwise(const Status& status) {
  return absl::IsUnavailable(status) || absl::IsResourceExhausted(status) ||
         absl::IsAborted(status);
}

}  // namespace

ChoosingTransport::ChoosingTransport(std::unique_ptr<Transport> tcp,
                                     std::unique_ptr<Transport> rdma, MonotonicNanos left_out)
    : left_out_for_(left_out), tcp_(std::move(tcp)), rdma_(std::move(rdma)) {
  CHECK(tcp_ != nullptr || rdma_ != nullptr);
}

std::string ChoosingTransport::Address() const {
  const std::string tcp = tcp_ == nullptr ? "" : tcp_->Address();
  return rdma_ == nullptr ? tcp : absl::StrCat(tcp, ";", rdma_->Address());
}

// Over RDMA alone, or while TCP reaches everybody, the other back end's troubles keep nobody out.
std::string ChoosingTransport::Problem() const {
  return tcp_ == nullptr ? rdma_->Problem() : tcp_->Problem();
}

Status ChoosingTransport::Attach(SlabId slab, SharedFd description, uint64_t bytes) {
  if (tcp_ == nullptr) return rdma_->Attach(slab, std::move(description), bytes);
  if (rdma_ == nullptr) return tcp_->Attach(slab, std::move(description), bytes);
  CAIRN_RETURN_IF_ERROR(tcp_->Attach(slab, description, bytes));
  const Status attached = rdma_->Attach(slab, std::move(description), bytes);
  if (!attached.ok()) tcp_->Detach(slab);
  return attached;
}

void ChoosingTransport::Detach(SlabId slab) {
  if (rdma_ != nullptr) rdma_->Detach(slab);
  if (tcp_ != nullptr) tcp_->Detach(slab);
}

StatusOr<std::string> ChoosingTransport::Describe(const ExtentRef& extent) const {
  return tcp_ == nullptr ? rdma_->Describe(extent) : tcp_->Describe(extent);
}

Status ChoosingTransport::Grant(const GrantToken& token, PeerId reader,
                                std::vector<ExtentRef> extents) {
  if (tcp_ == nullptr) return rdma_->Grant(token, reader, std::move(extents));
  CAIRN_RETURN_IF_ERROR(tcp_->Grant(token, reader, extents));
  if (rdma_ == nullptr) return absl::OkStatus();
  const Status granted = rdma_->Grant(token, reader, std::move(extents));
  if (!granted.ok()) tcp_->Revoke(token, ItsReads::kHaveEnded);
  return granted;
}

bool ChoosingTransport::Revoke(const GrantToken& token, ItsReads reads) {
  const bool over_rdma = rdma_ != nullptr && rdma_->Revoke(token, reads);
  const bool over_tcp = tcp_ != nullptr && tcp_->Revoke(token, reads);
  return over_rdma || over_tcp;
}

void ChoosingTransport::RevokePeer(PeerId reader) {
  if (rdma_ != nullptr) rdma_->RevokePeer(reader);
  if (tcp_ != nullptr) tcp_->RevokePeer(reader);
}

StatusOr<MonotonicNanos> ChoosingTransport::LastUsed(const GrantToken& token) const {
  if (tcp_ == nullptr) return rdma_->LastUsed(token);
  if (rdma_ == nullptr) return tcp_->LastUsed(token);
  CAIRN_ASSIGN_OR_RETURN(const MonotonicNanos over_tcp, tcp_->LastUsed(token));
  CAIRN_ASSIGN_OR_RETURN(const MonotonicNanos over_rdma, rdma_->LastUsed(token));
  return std::max(over_tcp, over_rdma);
}

StatusOr<std::string> ChoosingTransport::Answer(PeerId reader, absl::string_view question) {
  if (rdma_ == nullptr) return tcp_->Answer(reader, question);
  return rdma_->Answer(reader, question);
}

void ChoosingTransport::Read(ReadRequest request, ReadDone done) {
  const Addresses addresses = AddressesIn(request.address);
  ReadRequest over_tcp = request;
  over_tcp.address = addresses.tcp;
  if (rdma_ == nullptr || addresses.rdma.empty() ||
      (tcp_ != nullptr && !addresses.tcp.empty() && !UsesRdma(addresses.rdma, request.token))) {
    return ReadOverTcp(std::move(over_tcp), std::move(done));
  }
  request.address = addresses.rdma;
  const uint64_t length = request.length;
  if (tcp_ == nullptr || addresses.tcp.empty()) {
    return rdma_->Read(std::move(request), Counted(&Traffic::rdma_bytes, length, std::move(done)));
  }
  rdma_->Read(std::move(request), [this, over_tcp = std::move(over_tcp), rdma = addresses.rdma,
                                   done = Counted(&Traffic::rdma_bytes, length, done),
                                   plain = done](StatusOr<uint32_t> crc) {
    if (crc.ok() || !MayGoOtherwise(crc.status())) return done(std::move(crc));
    // That there is no room, or no memory to lock, says nothing of the peer.
    if (absl::IsUnavailable(crc.status())) LeaveOut(rdma, crc.status());
    if (absl::IsAborted(crc.status())) LeaveOutGrant(over_tcp.token, crc.status());
    ReadOverTcp(over_tcp, plain);
  });
}

// What was read over TCP the owner sees by itself.
ItsReads ChoosingTransport::Finish(const std::string& address, const GrantToken& token) {
  const Addresses addresses = AddressesIn(address);
  if (rdma_ == nullptr || addresses.rdma.empty()) return ItsReads::kMayBeUnderWay;
  return rdma_->Finish(addresses.rdma, token);
}

void ChoosingTransport::ReadOverTcp(ReadRequest request, ReadDone done) {
  if (tcp_ == nullptr || request.address.empty()) {
    return done(absl::UnavailableError(
        tcp_ == nullptr ? "the peer has no RDMA, and this member's transport is rdma"
                        : "the peer's transport is rdma, and this member has none"));
  }
  const uint64_t length = request.length;
  tcp_->Read(std::move(request), Counted(&Traffic::tcp_bytes, length, std::move(done)));
}

ReadDone ChoosingTransport::Counted(uint64_t Traffic::*bytes, uint64_t length, ReadDone done) {
  return [this, bytes, length, done = std::move(done)](StatusOr<uint32_t> crc) {
    if (crc.ok()) {
      MutexLock lock(&mu_);
      traffic_.*bytes += length;
    }
    done(std::move(crc));
  };
}

bool ChoosingTransport::UsesRdma(const std::string& address, const GrantToken& token) {
  MutexLock lock(&mu_);
  const MonotonicNanos now = RealClock()->Now();
  const auto peer = left_out_until_.find(address);
  if (peer != left_out_until_.end() && peer->second > now) return false;
  const auto grant = grants_left_out_until_.find(token);
  return grant == grants_left_out_until_.end() || grant->second <= now;
}

void ChoosingTransport::LeaveOut(const std::string& address, const Status& why) {
  const MonotonicNanos now = RealClock()->Now();
  {
    MutexLock lock(&mu_);
    MonotonicNanos& until = left_out_until_[address];
    if (until > now) return;  // so said a read that was under way with this one
    until = now + left_out_for_;
    ++traffic_.rdma_left_out;
  }
  LOG(WARNING) << "for " << left_out_for_ / kNanosPerSecond << " s over TCP what is read from "
               << address << ": " << why;
}

void ChoosingTransport::LeaveOutGrant(const GrantToken& token, const Status& why) {
  const MonotonicNanos now = RealClock()->Now();
  {
    MutexLock lock(&mu_);
    // Those that are over are of grants that nobody reads under any more, most of them.
    std::erase_if(grants_left_out_until_, [now](const auto& one) { return one.second <= now; });
    if (grants_left_out_until_.size() >= kMostGrantsLeftOut) return;
    if (!grants_left_out_until_.emplace(token, now + left_out_for_).second) return;
    ++traffic_.rdma_grants_left_out;
  }
  LOG_EVERY_N(WARNING, 100) << "for " << left_out_for_ / kNanosPerSecond
                            << " s over TCP what is read under a grant: " << why;
}

Traffic ChoosingTransport::traffic() const {
  const Traffic of_rdma = rdma_ == nullptr ? Traffic() : rdma_->traffic();
  MutexLock lock(&mu_);
  Traffic traffic = traffic_;
  traffic.rdma_rails_left_out = of_rdma.rdma_rails_left_out;
  return traffic;
}

}  // namespace cairn::transport
