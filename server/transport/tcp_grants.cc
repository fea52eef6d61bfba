#include "server/transport/tcp_grants.h"

#include <algorithm>
#include <utility>

namespace cairn::transport {
namespace {

bool Before(const ExtentRef& a, const ExtentRef& b) {
  return std::tie(a.slab, a.offset) < std::tie(b.slab, b.offset);
}

bool Covers(const std::vector<ExtentRef>& extents, const Question& question) {
  const ExtentRef asked = {question.slab, question.offset, question.length};
  auto after = std::upper_bound(extents.begin(), extents.end(), asked, Before);
  if (after == extents.begin()) return false;
  const ExtentRef& extent = *--after;
  if (extent.slab != asked.slab) return false;
  const uint64_t skipped = asked.offset - extent.offset;
  return skipped < extent.length && asked.length <= extent.length - skipped;
}

// One answer for all that is not permitted, so that it tells nothing about what exists.
Status NotPermitted() { return absl::PermissionDeniedError("token: it permits no such read"); }

}  // namespace

Status TcpGrants::Grant(const GrantToken& token, PeerId reader, std::vector<ExtentRef> extents,
                        const std::function<Status(const ExtentRef&)>& look) {
  std::sort(extents.begin(), extents.end(), Before);
  MutexLock lock(&mu_);
  if (grants_.size() >= kMaxGrants || extents.size() > kMaxGrantedExtents - extents_) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "grants: ", grants_.size(), " of at most ", kMaxGrants, ", with ", extents_, " of at most ",
        kMaxGrantedExtents, " extents; this one has ", extents.size()));
  }
  const auto [at, inserted] = grants_.try_emplace(token);
  if (!inserted) return absl::AlreadyExistsError("token: there is a grant with it");
  for (const ExtentRef& extent : extents) by_slab_[extent.slab].insert(token);
  extents_ += extents.size();
  at->second.reader = reader;
  at->second.extents = std::move(extents);
  at->second.last_used = RealClock()->Now();
  for (const ExtentRef& extent : at->second.extents) {
    const Status may = look(extent);
    if (may.ok()) continue;
    RevokeLocked(token);
    return may;
  }
  return absl::OkStatus();
}

bool TcpGrants::Revoke(const GrantToken& token) {
  MutexLock lock(&mu_);
  return RevokeLocked(token);
}

void TcpGrants::RevokePeer(PeerId reader) {
  MutexLock lock(&mu_);
  std::vector<GrantToken> tokens;
  for (const auto& [token, grant] : grants_) {
    if (grant.reader == reader) tokens.push_back(token);
  }
  for (const GrantToken& token : tokens) RevokeLocked(token);
}

void TcpGrants::RevokeSlab(SlabId slab) {
  MutexLock lock(&mu_);
  const auto at = by_slab_.find(slab);
  if (at == by_slab_.end()) return;
  const std::set<GrantToken> tokens = at->second;  // RevokeLocked changes it
  for (const GrantToken& token : tokens) RevokeLocked(token);
}

bool TcpGrants::RevokeLocked(const GrantToken& token) {
  const auto at = grants_.find(token);
  if (at == grants_.end()) return false;
  for (const ExtentRef& extent : at->second.extents) {
    const auto named = by_slab_.find(extent.slab);
    if (named == by_slab_.end()) continue;  // an earlier extent's
    named->second.erase(token);
    if (named->second.empty()) by_slab_.erase(named);
  }
  extents_ -= at->second.extents.size();
  const std::set<StreamId> streams = std::move(at->second.streams);
  grants_.erase(at);
  std::vector<StreamId> cut;
  for (const StreamId id : streams) {
    Stream& stream = streams_.at(id);
    stream.queued.erase(token);
    const bool sends = stream.sending && stream.token == token;
    if (!sends && !stream.socket->Unacknowledged()) continue;
    stream.socket->Shutdown();
    cut.push_back(id);
  }
  for (const StreamId id : cut) {
    while (streams_.contains(id)) closed_.Wait(&mu_);
  }
  return true;
}

StatusOr<MonotonicNanos> TcpGrants::LastUsed(const GrantToken& token) const {
  MutexLock lock(&mu_);
  const auto at = grants_.find(token);
  if (at == grants_.end()) return absl::NotFoundError("token: there is no grant with it");
  return at->second.last_used;
}

TcpGrants::StreamId TcpGrants::Open(TcpSocket* socket) {
  MutexLock lock(&mu_);
  streams_[next_].socket = socket;
  return next_++;
}

void TcpGrants::Close(StreamId stream) {
  MutexLock lock(&mu_);
  const auto at = streams_.find(stream);
  at->second.socket->Reset();
  for (const GrantToken& token : at->second.queued) grants_.at(token).streams.erase(stream);
  streams_.erase(at);
  closed_.NotifyAll();
}

TcpGrants::GrantState* TcpGrants::Find(PeerId reader, const Question& question) {
  const auto at = grants_.find(question.token);
  const bool may =
      at != grants_.end() && at->second.reader == reader && Covers(at->second.extents, question);
  return may ? &at->second : nullptr;
}

Status TcpGrants::Check(PeerId reader, const Question& question) {
  MutexLock lock(&mu_);
  return Find(reader, question) != nullptr ? absl::OkStatus() : NotPermitted();
}

Status TcpGrants::Begin(StreamId stream, PeerId reader, const Question& question) {
  MutexLock lock(&mu_);
  GrantState* const grant = Find(reader, question);
  if (grant == nullptr) return NotPermitted();
  Stream& sender = streams_.at(stream);
  if (!sender.socket->Unacknowledged()) Drained(stream, &sender);
  grant->last_used = RealClock()->Now();
  grant->streams.insert(stream);
  sender.queued.insert(question.token);
  sender.sending = true;
  sender.token = question.token;
  return absl::OkStatus();
}

void TcpGrants::End(StreamId stream) {
  MutexLock lock(&mu_);
  Stream& sender = streams_.at(stream);
  sender.sending = false;
  const auto at = grants_.find(sender.token);
  if (at != grants_.end()) at->second.last_used = RealClock()->Now();
}

void TcpGrants::Drained(StreamId id, Stream* stream) {
  for (const GrantToken& token : stream->queued) grants_.at(token).streams.erase(id);
  stream->queued.clear();
}

void TcpGrants::Cut(StreamId stream) {
  MutexLock lock(&mu_);
  const auto at = streams_.find(stream);
  if (at != streams_.end()) at->second.socket->Shutdown();
}

void TcpGrants::CutAll() {
  MutexLock lock(&mu_);
  for (const auto& [id, stream] : streams_) stream.socket->Shutdown();
}

}  // namespace cairn::transport
