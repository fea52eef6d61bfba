#include "server/rpc/peer_caller.h"

#include <thrift/TApplicationException.h>

#include <algorithm>
#include <exception>
#include <utility>

#include "common/ring_nodes.h"
#include "glog/logging.h"
#include "peer_constants.h"
#include "proto/convert.h"
#include "server/rpc/peer_convert.h"

namespace cairn::rpc {
namespace {

using apache::thrift::TApplicationException;
using engine::MemberId;

// What the entries of all lists of a message may take in memory.
constexpr uint64_t kMaxAnswerBytes = 64 << 20;
// Of one `say`: what is more is said in several, so that each is answered in time.
constexpr size_t kSayBytes = 8 << 20;
// Of the sender and the frame around the messages, at most.
constexpr size_t kAroundMessages = 1 << 10;
constexpr size_t kMostAddressBytes = 1 << 10;
constexpr size_t kMostNodesBytes = 16 << 10;

template <typename Value>
std::string Encoded(const Value& value) {
  FrameWriter writer;
  value.write(writer.protocol());
  return std::string(writer.Finish().substr(kFrameHeaderBytes));
}

}  // namespace

// --- PeerContext

peerwire::Sender PeerContext::Sender() const {
  peerwire::Sender sender;
  sender.__set_cluster(options.ring.cluster);
  sender.__set_member(ToPeerWire(host->Self()));
  return sender;
}

peerwire::Greeting PeerContext::Greeting(engine::Rank to) const {
  peerwire::Greeting greeting;
  greeting.__set_sender(Sender());
  greeting.__set_protocol(peerwire::g_peer_constants.PEER_PROTOCOL_VERSION);
  greeting.__set_address(options.ring.members.at(options.ring.rank));
  greeting.__set_data_address(options.data_address);
  greeting.__set_unix_ms(RealClock()->UnixMillis());
  if (options.ring.from_catalog) {
    greeting.__set_view(ToPeerWire(book->View()));
  } else {
    greeting.__set_nodes(RingNodesText(options.ring.members));
  }
  if (const std::optional<MemberId> seen = book->Newest(to)) greeting.__set_seen(ToPeerWire(*seen));
  return greeting;
}

StatusOr<MemberId> PeerContext::Check(const peerwire::Sender& sender,
                                      const std::optional<MemberName>& certificate) const {
  if (sender.cluster != options.ring.cluster) {
    return absl::FailedPreconditionError(absl::StrCat("cluster: \"", sender.cluster.substr(0, 128),
                                                      "\", this member is of \"",
                                                      options.ring.cluster, "\""));
  }
  StatusOr<MemberId> member = FromPeerWire(sender.member);
  if (!member.ok()) return Annotate(member.status(), "member");
  if (member->rank == options.ring.rank) {
    return absl::FailedPreconditionError(absl::StrCat(
        "rank: ", member->rank, " is the member's own at ", options.ring.members.at(member->rank)));
  }
  if (options.ring.members.count(member->rank) == 0) {
    return absl::FailedPreconditionError(
        absl::StrCat("rank: ", member->rank, " is not in ring.nodes"));
  }
  const bool any = options.ring.from_catalog && certificate == MemberName{sender.cluster, kAnyRank};
  if (certificate.has_value() && !any && *certificate != MemberName{sender.cluster, member->rank}) {
    return absl::PermissionDeniedError(absl::StrCat("the certificate names ",
                                                    MemberUri(*certificate), ", not rank ",
                                                    member->rank, " of cluster ", sender.cluster));
  }
  return member;
}

StatusOr<MemberId> PeerContext::Check(const peerwire::Greeting& greeting,
                                      const std::optional<MemberName>& certificate) const {
  const int32_t ours = peerwire::g_peer_constants.PEER_PROTOCOL_VERSION;
  if (greeting.protocol != ours) {
    return absl::UnimplementedError(
        absl::StrCat("protocol: ", greeting.protocol, ", this member speaks ", ours));
  }
  if (greeting.address.size() > kMostAddressBytes ||
      greeting.data_address.size() > kMostAddressBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("address, data_address: at most ", kMostAddressBytes, " bytes"));
  }
  if (greeting.nodes.size() > kMostNodesBytes) {
    return absl::InvalidArgumentError(absl::StrCat("nodes: at most ", kMostNodesBytes, " bytes"));
  }
  return Check(greeting.sender, certificate);
}

void PeerContext::Learn(engine::Rank from, const peerwire::Greeting& greeting) const {
  if (options.ring.from_catalog && greeting.__isset.view) {
    StatusOr<engine::RingView> view = FromPeerWire(greeting.view);
    if (view.ok()) {
      host->HeardView(*view);
    } else {
      LOG_EVERY_N(WARNING, 100) << "rank " << from << ": its view of the ring: " << view.status();
    }
  }
  if (!greeting.__isset.seen) return;
  const StatusOr<MemberId> seen = FromPeerWire(greeting.seen);
  const MemberId self = host->Self();
  if (!seen.ok() || seen->rank != self.rank || seen->instance == self.instance) return;
  if (seen->incarnation < self.incarnation) return;
  LOG_EVERY_N(WARNING, 100) << "rank " << from
                            << " has met another life of this member's rank: " << MemberText(*seen)
                            << "; this is incarnation " << self.incarnation;
  host->Met(from, *seen);
}

// --- PeerCaller

PeerCaller::PeerCaller(const PeerContext* context, engine::Rank rank)
    : context_(context), rank_(rank), reader_(kMaxAnswerBytes) {}

void PeerCaller::Close() {
  MutexLock lock(&mu_);
  stream_.reset();
}

void PeerCaller::Shutdown() {
  MutexLock lock(&mu_);
  if (stream_ != nullptr) stream_->Shutdown();
}

Status PeerCaller::Connect(const std::atomic<bool>& stop, MonotonicNanos deadline) {
  const PeersOptions& options = context_->options;
  const auto within = [deadline](MonotonicNanos time) {
    return std::min(deadline, RealClock()->Now() + time);
  };
  Close();
  const std::string listed = context_->book->AddressOf(rank_);
  if (listed.empty()) return absl::UnavailableError(absl::StrCat("nobody has rank ", rank_));
  CAIRN_ASSIGN_OR_RETURN(const TcpAddress address, TcpAddress::Parse(listed));
  CAIRN_ASSIGN_OR_RETURN(UniqueFd socket,
                         ConnectTcp(address, within(options.connect_timeout), stop));
  std::unique_ptr<TlsSession> tls;
  if (context_->tls != nullptr) {
    CAIRN_ASSIGN_OR_RETURN(tls, context_->tls->NewSession(/*server=*/false));
  }
  auto stream =
      std::make_shared<PeerStream>(std::move(socket), std::move(tls), options.call_timeout);
  {
    MutexLock lock(&mu_);
    stream_ = std::move(stream);
  }
  if (stop) Shutdown();  // before it waits for anything
  Status status = stream_->Handshake(within(options.ExchangeTimeout()));
  address_ = listed;
  told_view_ = context_->book->view_version();
  if (status.ok()) status = Greet(within(options.ExchangeTimeout()));
  if (status.ok()) return status;
  Close();
  return Annotate(status, listed);
}

Status PeerCaller::Greet(MonotonicNanos deadline) {
  const MonotonicNanos asked = RealClock()->Now();
  max_answer_bytes_ = context_->options.max_stranger_message_bytes;
  const peerwire::Greeting greeting = context_->Greeting(rank_);
  peerwire::Peer_greet_pargs args;
  args.greeting = &greeting;
  BeginCall("greet");
  args.write(writer_->protocol());
  peerwire::Peer_greet_result result;
  const MonotonicNanos left = std::max<MonotonicNanos>(deadline - asked, 0);
  CAIRN_RETURN_IF_ERROR(Exchange("greet", left, &result));
  const peerwire::Greeted& greeted = result.success;
  CAIRN_ASSIGN_OR_RETURN(const MemberId who, context_->Check(greeted.greeting, stream_->peer()));
  if (who.rank != rank_) {
    return absl::FailedPreconditionError(
        absl::StrCat("rank ", rank_, " is listed there, rank ", who.rank, " answers"));
  }
  CAIRN_RETURN_IF_ERROR(context_->book->Met(who, asked));
  if (greeted.greeting.__isset.nodes) context_->book->Lists(who.rank, greeted.greeting.nodes);
  context_->Learn(rank_, greeted.greeting);
  if (greeted.__isset.refused) return Annotate(FromWire(greeted.refused), "it answers");
  data_address_ = greeted.greeting.data_address;
  max_answer_bytes_ = context_->options.max_message_bytes;
  return absl::OkStatus();
}

StatusOr<MemberId> PeerCaller::Say(std::vector<engine::peer::Message> messages) {
  const size_t most = context_->options.max_message_bytes - kAroundMessages;
  std::vector<std::string> encoded;
  size_t bytes = 0;
  for (engine::peer::Message& message : messages) {
    std::string one = Encoded(ToPeerWire(message));
    message = {};  // each is held once while they are many
    if (one.size() > most) {
      LOG(ERROR) << "rank " << rank_ << ": a message of kind " << message.index() << " has "
                 << one.size() << " bytes, at most " << most << " can be sent; it is dropped";
      continue;
    }
    if (bytes > 0 && bytes + one.size() > std::min(kSayBytes, most)) {
      CAIRN_RETURN_IF_ERROR(SayEncoded(encoded).status());
      encoded.clear();
      bytes = 0;
    }
    bytes += one.size();
    encoded.push_back(std::move(one));
  }
  return SayEncoded(encoded);
}

StatusOr<MemberId> PeerCaller::SayEncoded(const std::vector<std::string>& messages) {
  using namespace apache::thrift::protocol;  // the types of fields
  const MonotonicNanos asked = RealClock()->Now();
  BeginCall("say");
  TProtocol* const out = writer_->protocol();
  // Peer_say_args, with messages that are encoded already.
  out->writeStructBegin("Peer_say_pargs");
  out->writeFieldBegin("sender", T_STRUCT, 1);
  context_->Sender().write(out);
  out->writeFieldEnd();
  out->writeFieldBegin("messages", T_LIST, 2);
  out->writeListBegin(T_STRUCT, static_cast<uint32_t>(messages.size()));
  for (const std::string& message : messages) {
    out->getTransport()->write(reinterpret_cast<const uint8_t*>(message.data()),
                               static_cast<uint32_t>(message.size()));
  }
  out->writeListEnd();
  out->writeFieldEnd();
  out->writeFieldStop();
  out->writeStructEnd();
  peerwire::Peer_say_result result;
  CAIRN_RETURN_IF_ERROR(Exchange("say", context_->options.ExchangeTimeout(), &result));
  for (const std::string& refused : result.success.refused) {
    LOG_EVERY_N(ERROR, 100) << "rank " << rank_ << " has refused a message: " << refused;
  }
  CAIRN_ASSIGN_OR_RETURN(const MemberId who, FromPeerWire(result.success.member));
  if (who.rank != rank_) return absl::InternalError("the answer is another rank's");
  CAIRN_RETURN_IF_ERROR(context_->book->Met(who, asked));
  return who;
}

StatusOr<engine::peer::GrantAnswer> PeerCaller::Grant(const engine::peer::GrantQuestion& question,
                                                      MonotonicNanos deadline) {
  const MonotonicNanos left = std::max<MonotonicNanos>(deadline - RealClock()->Now(), 0);
  const peerwire::Sender sender = context_->Sender();
  peerwire::GrantQuestion asked = ToPeerWire(question);
  // A little less than is left, so that the member's own answer comes before this side gives up.
  asked.__set_timeout_ms(left / kNanosPerMilli * 9 / 10);
  peerwire::Peer_grant_pargs args;
  args.sender = &sender;
  args.question = &asked;
  BeginCall("grant");
  args.write(writer_->protocol());
  peerwire::Peer_grant_result result;
  CAIRN_RETURN_IF_ERROR(Exchange("grant", left, &result));
  return FromPeerWire(std::move(result.success));
}

StatusOr<std::string> PeerCaller::AskTransport(const std::string& question,
                                               MonotonicNanos deadline) {
  const MonotonicNanos left = std::max<MonotonicNanos>(deadline - RealClock()->Now(), 0);
  const peerwire::Sender sender = context_->Sender();
  peerwire::Peer_askTransport_pargs args;
  args.sender = &sender;
  args.question = &question;
  BeginCall("askTransport");
  args.write(writer_->protocol());
  peerwire::Peer_askTransport_result result;
  CAIRN_RETURN_IF_ERROR(Exchange("askTransport", left, &result));
  return std::move(result.success);
}

Status PeerCaller::EndGrants(const std::vector<node::EndedGrant>& ended) {
  const peerwire::Sender sender = context_->Sender();
  std::vector<int64_t> grants, idle;
  for (const node::EndedGrant& one : ended) {
    const bool over = one.reads == transport::ItsReads::kHaveEnded;
    (over ? idle : grants).push_back(static_cast<int64_t>(one.grant));
  }
  peerwire::Peer_endGrants_pargs args;
  args.sender = &sender;
  args.grants = &grants;
  args.idle = &idle;
  BeginCall("endGrants");
  args.write(writer_->protocol());
  peerwire::Peer_endGrants_result result;
  return Exchange("endGrants", context_->options.call_timeout, &result);
}

void PeerCaller::BeginCall(const char* method) {
  // The space of one that was long is not kept.
  constexpr size_t kKept = 1 << 20;
  if (writer_ == nullptr || last_bytes_ > kKept) writer_ = std::make_unique<FrameWriter>();
  writer_->Reset();
  writer_->protocol()->writeMessageBegin(method, apache::thrift::protocol::T_CALL, 0);
}

template <typename Result>
Status PeerCaller::Exchange(const char* method, MonotonicNanos timeout, Result* result) {
  writer_->protocol()->writeMessageEnd();
  const absl::string_view frame = writer_->Finish();
  last_bytes_ = frame.size();
  StatusOr<std::string> answer = SendAndReceive(frame, timeout);
  if (!answer.ok()) {
    Close();
    return answer.status();
  }
  try {
    apache::thrift::protocol::TProtocol* const in = reader_.Read(*answer);
    std::string name;
    apache::thrift::protocol::TMessageType type = apache::thrift::protocol::T_CALL;
    int32_t sequence = 0;
    in->readMessageBegin(name, type, sequence);
    if (type == apache::thrift::protocol::T_EXCEPTION) {
      TApplicationException error;
      error.read(in);
      Close();
      return absl::UnimplementedError(absl::StrCat(method, ": ", error.what()));
    }
    result->read(in);
    in->readMessageEnd();
  } catch (const std::exception& e) {
    Close();
    return absl::InternalError(absl::StrCat(method, ": the answer is not one: ", e.what()));
  }
  if (result->__isset.error) return FromWire(result->error);
  if constexpr (requires { result->__isset.success; }) {
    if (!result->__isset.success) {
      Close();
      return absl::InternalError(absl::StrCat(method, ": the answer is empty"));
    }
  }
  return absl::OkStatus();
}

StatusOr<std::string> PeerCaller::SendAndReceive(absl::string_view frame, MonotonicNanos timeout) {
  if (stream_ == nullptr) return absl::UnavailableError("not connected");
  MonotonicNanos deadline = RealClock()->Now() + timeout + TimeToMove(frame.size());
  CAIRN_RETURN_IF_ERROR(stream_->Send(frame, deadline));
  CAIRN_RETURN_IF_ERROR(stream_->WaitReadable(deadline));
  CAIRN_ASSIGN_OR_RETURN(const uint32_t length, stream_->ReceiveLength(deadline));
  if (length > max_answer_bytes_) {
    return absl::InvalidArgumentError(
        absl::StrCat("an answer of ", length, " bytes, at most ", max_answer_bytes_));
  }
  deadline += TimeToMove(length);
  return stream_->ReceiveMessage(length, deadline);
}

}  // namespace cairn::rpc
