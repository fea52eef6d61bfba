#include "tests/rpc/raw_client.h"

#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <thrift/protocol/TBinaryProtocol.h>
#include <thrift/transport/TBufferTransports.h>
#include <thrift/transport/TSocket.h>
#include <unistd.h>

#include <cstring>
#include <random>
#include <stdexcept>

#include "common/checksum.h"

namespace cairn::testing {
namespace {

using apache::thrift::protocol::TBinaryProtocol;
using apache::thrift::transport::TFramedTransport;
using apache::thrift::transport::TSocket;

std::string RandomProcess() {
  std::random_device random;
  std::string token(16, '\0');
  for (char& c : token) c = static_cast<char>(random());
  return token;
}

}  // namespace

std::string Pattern(size_t length, uint32_t seed) {
  std::string bytes(length, '\0');
  uint32_t state = seed * 2654435761u + 1;
  for (char& c : bytes) {
    state = state * 1664525u + 1013904223u;
    c = static_cast<char>(state >> 24);
  }
  return bytes;
}

RawClient::RawClient(const std::string& socket) : socket_(socket), process_(RandomProcess()) {
  Connect();
}

void RawClient::Connect() {
  auto transport = std::make_shared<TSocket>(socket_);
  transport->setRecvTimeout(60'000);
  auto buffered = std::make_shared<TFramedTransport>(transport);
  buffered->open();
  client_ = std::make_unique<wire::CairnClient>(std::make_shared<TBinaryProtocol>(buffered));
}

wire::HelloRequest RawClient::HelloOf(const std::string& job, int64_t attempt, int32_t writer,
                                      int32_t world_size) {
  wire::HelloRequest request;
  request.__set_protocol(1);
  request.__set_job(job);
  request.__set_attempt(attempt);
  request.__set_writer(writer);
  request.__set_world_size(world_size);
  request.__set_process(RandomProcess());
  request.__set_client("raw client of a test");
  return request;
}

wire::HelloReply RawClient::Hello(const wire::HelloRequest& request) {
  request_ = request;
  client_->hello(hello_, request);
  return hello_;
}

void RawClient::Begin(const std::string& job, int64_t attempt, int32_t writer, int32_t world_size) {
  wire::HelloRequest request = HelloOf(job, attempt, writer, world_size);
  request.__set_process(process_);
  Hello(request);
  if (Attach() != 0) throw std::runtime_error("attach was refused");
}

int RawClient::Attach() {
  UniqueFd channel(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  std::strncpy(address.sun_path, hello_.fd_socket.c_str(), sizeof(address.sun_path) - 1);
  if (connect(channel.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0) {
    throw std::runtime_error("fd socket: " + std::string(std::strerror(errno)));
  }
  const StatusOr<std::string> attach =
      Encode(FdAttach{static_cast<SessionId>(hello_.session), hello_.secret});
  if (!attach.ok()) throw std::runtime_error(attach.status().ToString());
  StatusOr<UniqueFd> pidfd = OpenPidfd(getpid());
  if (!pidfd.ok()) throw std::runtime_error(pidfd.status().ToString());
  if (!SendMessage(channel.get(), *attach, {pidfd->get()}).ok()) return -1;
  StatusOr<ReceivedMessage> answer = ReceiveMessage(channel.get(), kFdChannelMaxMessage);
  if (!answer.ok()) return -1;
  const StatusOr<FdAttached> attached = DecodeFdAttached(answer->bytes);
  if (!attached.ok()) return -1;
  const bool accepted = attached->code == absl::StatusCode::kOk;
  if (accepted && answer->fds.size() == 1) {
    progress_ =
        *Mapping::Map(answer->fds[0].get(), 0, kPageBytes, PROT_READ | PROT_WRITE, MAP_SHARED);
  }
  if (accepted) channel_ = std::move(channel);
  return static_cast<int>(attached->code);
}

void RawClient::Rejoin() {
  CloseThrift();
  Connect();
  client_->rejoin(hello_, hello_.session, hello_.secret);
}

void RawClient::CloseThrift() {
  try {
    client_->getInputProtocol()->getTransport()->close();
  } catch (const std::exception&) {
    // The daemon has closed first.
  }
}

UniqueFd RawClient::TakeFd(int64_t lease) {
  for (;;) {
    for (auto it = received_.begin(); it != received_.end(); ++it) {
      if (static_cast<int64_t>(it->lent.lease) != lease) continue;
      UniqueFd fd = std::move(it->fd);
      received_.erase(it);
      return fd;
    }
    StatusOr<ReceivedMessage> message =
        ReceiveMessage(channel_.get(), kFdChannelMaxMessage, MSG_DONTWAIT);
    if (!message.ok() || message->fds.size() != 1) return UniqueFd();
    const StatusOr<FdLent> lent = DecodeFdLent(message->bytes);
    if (!lent.ok()) return UniqueFd();
    received_.push_back({*lent, std::move(message->fds[0])});
  }
}

wire::CommitReply RawClient::Save(int64_t step, const std::string& name, const std::string& bytes) {
  wire::ObjectSpec spec;
  spec.__set_name(name);
  spec.__set_length(static_cast<int64_t>(bytes.size()));
  wire::CreateRequest create;
  create.__set_step(step);
  create.__set_attempt(request_.attempt);
  create.__set_revision(0);
  create.__set_writer(request_.writer);
  create.__set_world_size(request_.world_size);
  create.__set_objects({spec});
  create.__set_timeout_ms(30'000);
  wire::CreateReply created;
  client_->create(created, NextCall(), create);
  const wire::Extent& extent = created.extents.at(0);
  if (!bytes.empty()) {
    char* slab = nullptr;
    for (auto& [id, mapping] : slabs_) {
      if (id == extent.slab) slab = mapping.data();
    }
    if (slab == nullptr) {
      UniqueFd fd = TakeFd(extent.lease);
      if (!fd.valid()) throw std::runtime_error("no descriptor came for the lease");
      slabs_.emplace_back(extent.slab,
                          *Mapping::Map(fd.get(), 0, static_cast<uint64_t>(extent.slab_bytes),
                                        PROT_READ | PROT_WRITE, MAP_SHARED));
      slab = slabs_.back().second.data();
    }
    std::memcpy(slab + extent.offset, bytes.data(), bytes.size());
  }
  wire::SealedObject seal;
  seal.__set_name(name);
  seal.__set_length(static_cast<int64_t>(bytes.size()));
  for (uint32_t crc : BlockCrcs(bytes.data(), bytes.size(), kBlockBytes)) {
    seal.block_crcs.push_back(static_cast<int32_t>(crc));
  }
  seal.covered = {0, static_cast<int64_t>(bytes.size())};
  wire::CommitRequest commit;
  commit.__set_step(step);
  commit.__set_attempt(request_.attempt);
  commit.__set_revision(0);
  commit.__set_writer(request_.writer);
  commit.__set_world_size(request_.world_size);
  commit.__set_seals({seal});
  wire::CommitReply committed;
  client_->commit(committed, NextCall(), commit);
  return committed;
}

std::string RawClient::Load(const std::string& job, int64_t step, const std::string& name) {
  wire::OpenRequest request;
  request.checkpoint.__set_job(job);
  request.checkpoint.__set_step(step);
  request.__set_name(name);
  request.__set_mode(wire::OpenMode::READ);
  request.__set_timeout_ms(30'000);
  wire::OpenReply opened;
  client_->open(opened, NextCall(), request);
  std::string bytes(static_cast<size_t>(opened.object.length), '\0');
  if (opened.fd_sent) {
    UniqueFd fd = TakeFd(opened.lease);
    if (!fd.valid()) throw std::runtime_error("no descriptor came for the lease");
    Status read =
        PreadAll(fd.get(), bytes.data(), bytes.size(), static_cast<uint64_t>(opened.offset));
    if (!read.ok()) throw std::runtime_error(read.ToString());
  }
  if (opened.lease != 0) client_->release(NextCall(), {opened.lease});
  return bytes;
}

}  // namespace cairn::testing
