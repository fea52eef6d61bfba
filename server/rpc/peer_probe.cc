#include "server/rpc/peer_probe.h"

#include <atomic>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "Peer.h"
#include "peer_constants.h"
#include "proto/frame.h"
#include "server/rpc/peer_convert.h"
#include "server/rpc/peer_stream.h"
#include "server/tls/peer_tls.h"

namespace cairn::rpc {
namespace {

// A greeting of nobody: a member answers who it is, and listens to nothing more.
std::string Greeting(const PeersOptions& options) {
  peerwire::Greeting greeting;
  peerwire::Sender sender;
  sender.__set_cluster(options.ring.cluster);
  sender.__set_member(ToPeerWire(engine::MemberId{engine::kNoRank, 0, ""}));
  greeting.__set_sender(sender);
  greeting.__set_protocol(peerwire::g_peer_constants.PEER_PROTOCOL_VERSION);
  peerwire::Peer_greet_pargs args;
  args.greeting = &greeting;
  FrameWriter writer;
  writer.protocol()->writeMessageBegin("greet", apache::thrift::protocol::T_CALL, 0);
  args.write(writer.protocol());
  writer.protocol()->writeMessageEnd();
  return std::string(writer.Finish());
}

// The rank that the answer is of; nullopt: it is no greeting.
std::optional<engine::Rank> RankIn(PeerStream* stream, MonotonicNanos deadline) {
  constexpr uint32_t kMost = 1 << 20;
  const StatusOr<uint32_t> length = stream->ReceiveLength(deadline);
  if (!length.ok() || *length > kMost) return std::nullopt;
  const StatusOr<std::string> answer = stream->ReceiveMessage(*length, deadline);
  if (!answer.ok()) return std::nullopt;
  try {
    MessageReader reader(kMost);
    apache::thrift::protocol::TProtocol* const in = reader.Read(*answer);
    std::string name;
    apache::thrift::protocol::TMessageType type = apache::thrift::protocol::T_CALL;
    int32_t sequence = 0;
    in->readMessageBegin(name, type, sequence);
    if (type != apache::thrift::protocol::T_REPLY) return std::nullopt;
    peerwire::Peer_greet_result result;
    result.read(in);
    if (!result.__isset.success) return std::nullopt;
    return result.success.greeting.sender.member.rank;
  } catch (const std::exception&) {
    return std::nullopt;
  }
}

// Nothing was heard from the other end.
bool IsSilence(const Status& status) { return absl::IsDeadlineExceeded(status); }

}  // namespace

bool SomebodyAnswers(const PeersOptions& options, const std::string& address, engine::Rank rank) {
  const StatusOr<TcpAddress> to = TcpAddress::Parse(address);
  if (!to.ok()) return false;
  const std::atomic<bool> never = false;
  StatusOr<UniqueFd> socket = ConnectTcp(*to, RealClock()->Now() + options.connect_timeout, never);
  if (!socket.ok()) return false;
  std::unique_ptr<TlsContext> context;
  std::unique_ptr<TlsSession> session;
  if (!options.tls.none()) {
    StatusOr<std::unique_ptr<TlsContext>> loaded = TlsContext::Load(
        options.tls, {options.ring.cluster, options.ring.rank}, options.ring.from_catalog);
    if (!loaded.ok()) return true;  // nobody can tell
    context = *std::move(loaded);
    StatusOr<std::unique_ptr<TlsSession>> made = context->NewSession(/*server=*/false);
    if (!made.ok()) return true;
    session = *std::move(made);
  }
  const MonotonicNanos deadline = RealClock()->Now() + options.call_timeout;
  PeerStream stream(*std::move(socket), std::move(session), 2 * options.call_timeout);
  Status status = stream.Handshake(deadline);
  if (status.ok()) status = stream.Send(Greeting(options), deadline);
  if (status.ok()) status = stream.WaitReadable(deadline);
  if (!status.ok()) return !IsSilence(status);
  const std::optional<engine::Rank> told = RankIn(&stream, deadline);
  return !told.has_value() || *told == rank;
}

}  // namespace cairn::rpc
