#include "server/transport/tcp_grants.h"

#include <utility>

namespace cairn::transport {

Status TcpGrants::Grant(const GrantToken& token, PeerId reader, std::vector<ExtentRef> extents,
                        const std::function<Status(const ExtentRef&)>& look) {
  MutexLock lock(&mu_);
  return grants_.Add(token, reader, std::move(extents), look);
}

bool TcpGrants::Revoke(const GrantToken& token) {
  MutexLock lock(&mu_);
  return RevokeLocked(token);
}

void TcpGrants::RevokePeer(PeerId reader) {
  MutexLock lock(&mu_);
  for (const GrantToken& token : grants_.OfPeer(reader)) RevokeLocked(token);
}

void TcpGrants::RevokeSlab(SlabId slab) {
  MutexLock lock(&mu_);
  for (const GrantToken& token : grants_.OfSlab(slab)) RevokeLocked(token);
}

bool TcpGrants::RevokeLocked(const GrantToken& token) {
  if (!grants_.Erase(token)) return false;
  const auto used = streams_of_.extract(token);
  if (used.empty()) return true;
  std::vector<StreamId> cut;
  for (const StreamId id : used.mapped()) {
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
  const GrantTable::Entry* const grant = grants_.Find(token);
  if (grant == nullptr) return absl::NotFoundError("token: there is no grant with it");
  return grant->last_used;
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
  for (const GrantToken& token : at->second.queued) streams_of_.at(token).erase(stream);
  streams_.erase(at);
  closed_.NotifyAll();
}

GrantTable::Entry* TcpGrants::Find(PeerId reader, const Question& question) {
  GrantTable::Entry* const grant = grants_.Find(question.token);
  const ExtentRef asked = {question.slab, question.offset, question.length};
  const bool may = grant != nullptr && grant->reader == reader && Covers(grant->extents, asked);
  return may ? grant : nullptr;
}

Status TcpGrants::Check(PeerId reader, const Question& question) {
  MutexLock lock(&mu_);
  return Find(reader, question) != nullptr ? absl::OkStatus() : NotPermitted();
}

Status TcpGrants::Begin(StreamId stream, PeerId reader, const Question& question) {
  MutexLock lock(&mu_);
  GrantTable::Entry* const grant = Find(reader, question);
  if (grant == nullptr) return NotPermitted();
  Stream& sender = streams_.at(stream);
  if (!sender.socket->Unacknowledged()) Drained(stream, &sender);
  grant->last_used = RealClock()->Now();
  streams_of_[question.token].insert(stream);
  sender.queued.insert(question.token);
  sender.sending = true;
  sender.token = question.token;
  return absl::OkStatus();
}

void TcpGrants::End(StreamId stream) {
  MutexLock lock(&mu_);
  Stream& sender = streams_.at(stream);
  sender.sending = false;
  GrantTable::Entry* const grant = grants_.Find(sender.token);
  if (grant != nullptr) grant->last_used = RealClock()->Now();
}

void TcpGrants::Drained(StreamId id, Stream* stream) {
  for (const GrantToken& token : stream->queued) streams_of_.at(token).erase(id);
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
