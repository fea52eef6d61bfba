// A daemon that lies to libcairn: what it answers, and what it lends, is read from a fuzzer's input.
#pragma once

#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>

#include <cstring>
#include <list>
#include <string>
#include <thread>
#include <vector>

#include "Cairn.h"
#include "absl/strings/str_cat.h"
#include "common/fd_channel.h"
#include "proto/frame.h"
#include "tests/fuzz/fuzz_input.h"
#include "tests/fuzz/fuzz_support.h"

namespace cairn::testing {

using apache::thrift::protocol::TMessageType;

constexpr uint64_t kSlabBytes = 64 << 10;
constexpr size_t kMaxAnswers = 12;

enum Option : uint8_t { kTakesFds = 1, kHonestHello = 2, kTwoCopyThreads = 4, kForEver = 8 };

enum AnswerKind : uint8_t {
  kResult,     // the call's name and number, then bytes
  kFrame,      // of any bytes
  kBytes,      // then hangs up
  kHalfFrame,  // that announces a number of bytes; then hangs up
  kHangUp,
  kError,    // any code, any message
  kSilence,  // until the client's deadline
  kTwoResults,
};

enum PacketKind : uint8_t { kSlab, kFile, kAttached, kAnyPacket };

// --- what the daemon may lend

class Lent {
 public:
  Lent() {
    int ends[2];
    Add(Memory(kSlabBytes, true).Release());
    Add(Memory(kSlabBytes, false).Release());
    Add(Memory(kPageBytes, true).Release());
    Add(Memory(0, true).Release());
    Add(open(absl::StrCat("/proc/self/fd/", Of(0)).c_str(), O_RDONLY | O_CLOEXEC));
    if (pipe2(ends, O_CLOEXEC) == 0) Add(ends[0]), Add(ends[1]);
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0) Add(ends[0]), Add(ends[1]);
    Add(open("/dev/null", O_RDWR | O_CLOEXEC));
    Add(open("/", O_PATH | O_CLOEXEC));
    Add(open("/proc/self/exe", O_RDONLY | O_CLOEXEC));
    slab_ = *Mapping::Map(Of(0), 0, kSlabBytes, PROT_READ | PROT_WRITE, MAP_SHARED);
  }
  int Of(size_t kind) const { return all_[kind % all_.size()].get(); }
  int Page() const { return Of(2); }
  // What the last input's client has written.
  void Clear() { std::memset(slab_.data(), 0, kSlabBytes); }

 private:
  static UniqueFd Memory(uint64_t bytes, bool sealed) {
    if (sealed) return *MakeMemfd("lent", bytes, 0600);
    UniqueFd fd(memfd_create("lent", MFD_CLOEXEC | MFD_ALLOW_SEALING));
    if (ftruncate(fd.get(), static_cast<off_t>(bytes)) != 0) Finding("ftruncate");
    return fd;
  }
  void Add(int fd) {
    if (fd < 0) Finding("no descriptor to lend");
    all_.emplace_back(fd);
  }
  std::vector<UniqueFd> all_;
  Mapping slab_;
};

// --- the daemon

inline UniqueFd Listen(const std::string& path, int type) {
  UniqueFd fd(socket(AF_UNIX, type | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  path.copy(address.sun_path, sizeof address.sun_path - 1);
  if (bind(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0 ||
      listen(fd.get(), 64) != 0) {
    Finding("listen at " + path);
  }
  return fd;
}

// Both sockets, for all inputs.
struct Sockets {
  SocketFolder folder;
  UniqueFd thrift = Listen(folder.Path("cairn.sock"), SOCK_STREAM);
  UniqueFd fds = Listen(folder.Path("cairn.sock.fd"), SOCK_SEQPACKET);
};

// A thread that answers as the input says, from its construction to its end.
class LyingDaemon {
 public:
  LyingDaemon(const Sockets* sockets, const Lent* lent, uint8_t options, FuzzInput script)
      : sockets_(sockets),
        lent_(lent),
        options_(options),
        honest_hello_((options & kHonestHello) != 0),
        whole_script_(script),
        script_(script),
        wake_(eventfd(0, EFD_CLOEXEC)),
        thread_([this] { Serve(); }) {}
  ~LyingDaemon() {
    eventfd_write(wake_.get(), 1);
    thread_.join();
  }

 private:
  struct Connection {
    UniqueFd socket;
    std::string in;
  };

  void Serve() {
    for (;;) {
      std::vector<pollfd> all = {{wake_.get(), POLLIN, 0},
                                 {sockets_->thrift.get(), POLLIN, 0},
                                 {sockets_->fds.get(), POLLIN, 0}};
      for (const Connection& one : calls_) all.push_back({one.socket.get(), POLLIN, 0});
      for (const Connection& one : channels_) all.push_back({one.socket.get(), POLLIN, 0});
      if (poll(all.data(), all.size(), -1) < 0) continue;
      if (all[0].revents != 0) break;
      Accept(sockets_->thrift.get(), &calls_);
      Accept(sockets_->fds.get(), &channels_);
      for (Connection& one : calls_) ReadCalls(&one);
      for (Connection& one : channels_) ReadPackets(&one);
      const auto closed = [](const Connection& one) { return !one.socket.valid(); };
      calls_.remove_if(closed);
      channels_.remove_if(closed);
    }
    // The next input's daemon does not meet who is still in the backlog.
    Accept(sockets_->thrift.get(), &calls_);
    Accept(sockets_->fds.get(), &channels_);
  }

  static void Accept(int listener, std::list<Connection>* into) {
    for (;;) {
      UniqueFd socket(accept4(listener, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
      if (!socket.valid()) return;
      into->push_back({std::move(socket), ""});
    }
  }

  void ReadCalls(Connection* from) {
    char bytes[16 << 10];
    for (;;) {
      const ssize_t got = recv(from->socket.get(), bytes, sizeof bytes, 0);
      if (got < 0) break;
      if (got == 0) return from->socket.Reset();
      from->in.append(bytes, static_cast<size_t>(got));
    }
    while (from->socket.valid() && from->in.size() >= kFrameHeaderBytes &&
           from->in.size() - kFrameHeaderBytes >= FrameLength(from->in.data())) {
      const size_t length = FrameLength(from->in.data());
      const std::string message = from->in.substr(kFrameHeaderBytes, length);
      from->in.erase(0, kFrameHeaderBytes + length);
      Answer(from, message);
    }
  }

  void Answer(Connection* to, const std::string& message) {
    std::string name;
    TMessageType type = TMessageType::T_CALL;
    int32_t sequence = 0;
    MessageReader reader(64 << 20);
    try {
      reader.Read(message)->readMessageBegin(name, type, sequence);
    } catch (const apache::thrift::TException& e) {
      Finding(std::string("libcairn sends what cannot be read: ") + e.what());
    }
    if (name == "hello" && honest_hello_) return Send(to, HelloReply(sequence));
    const bool for_ever = (options_ & kForEver) != 0 && !HasOwnDeadline(name);
    if (script_.empty() && for_ever) script_ = whole_script_;
    if (script_.empty() || (++answers_ > kMaxAnswers && !for_ever)) {
      return Send(to, Error(name, sequence, absl::StatusCode::kFailedPrecondition, "no more"));
    }
    const uint8_t what = script_.Byte();
    for (int i = 0; i < (what >> 3) % 4; ++i) PushPacket();
    Answer(to, static_cast<AnswerKind>(what & 7), name, sequence);
  }

  void Answer(Connection* to, AnswerKind kind, const std::string& name, int32_t sequence) {
    switch (kind) {
      case kResult:
        return Send(to, Reply(name, sequence, script_.Bytes()));
      case kTwoResults: {
        const std::string reply = Reply(name, sequence, script_.Bytes());
        return Send(to, reply + reply);
      }
      case kFrame: {
        const std::string bytes = script_.Bytes();
        return Send(to, Framed(bytes, bytes.size()));
      }
      case kBytes:
        Send(to, script_.Bytes());
        return to->socket.Reset();
      case kHalfFrame: {
        const auto announced = script_.Number<uint32_t>();
        Send(to, Framed(script_.Bytes(), announced));
        return to->socket.Reset();
      }
      case kError: {
        const auto code = static_cast<absl::StatusCode>(script_.Byte());
        return Send(to, Error(name, sequence, code, script_.Bytes()));
      }
      case kSilence:
        if (!silent_ && !HasOwnDeadline(name)) {
          silent_ = true;
          return;
        }
        break;
      case kHangUp:
        break;
    }
    to->socket.Reset();
  }

  // Of a second, whatever the session's timeout is.
  static bool HasOwnDeadline(const std::string& name) {
    return name == "wait" || name == "abort" || name == "goodbye" || name == "release";
  }

  static void Send(Connection* to, const std::string& bytes) {
    (void)send(to->socket.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  }

  static std::string Framed(const std::string& message, size_t announced) {
    std::string bytes(kFrameHeaderBytes, '\0');
    PutFrameLength(static_cast<uint32_t>(announced), bytes.data());
    return bytes + message;
  }
  static std::string Reply(const std::string& name, int32_t sequence, const std::string& body) {
    FrameWriter writer;
    writer.protocol()->writeMessageBegin(name, TMessageType::T_REPLY, sequence);
    const std::string message = std::string(writer.Finish().substr(kFrameHeaderBytes)) + body;
    return Framed(message, message.size());
  }
  // Each call's result has its error in the same place.
  static std::string Error(const std::string& name, int32_t sequence, absl::StatusCode code,
                           const std::string& message) {
    wire::Cairn_ping_result result;
    result.error.__set_code(static_cast<int32_t>(code));
    result.error.__set_message(message);
    result.__isset.error = true;
    FrameWriter writer;
    writer.protocol()->writeMessageBegin(name, TMessageType::T_REPLY, sequence);
    result.write(writer.protocol());
    return std::string(writer.Finish());
  }
  std::string HelloReply(int32_t sequence) const {
    wire::Cairn_hello_result result;
    result.success.__set_protocol(1);
    result.success.__set_session(1);
    result.success.__set_secret(std::string(kSessionSecretBytes, 's'));
    result.success.__set_fd_socket(sockets_->folder.Path("cairn.sock.fd"));
    result.__isset.success = true;
    FrameWriter writer;
    writer.protocol()->writeMessageBegin("hello", TMessageType::T_REPLY, sequence);
    result.write(writer.protocol());
    return std::string(writer.Finish());
  }

  // --- the fd socket

  void ReadPackets(Connection* from) {
    while (from->socket.valid()) {
      const auto message = ReceiveMessage(from->socket.get(), kFdChannelMaxMessage, MSG_DONTWAIT);
      if (!message.ok()) return;
      if (message->bytes.empty()) return from->socket.Reset();
      if (!DecodeFdAttach(message->bytes).ok()) Finding("libcairn sends a bad attach");
      if (honest_hello_ || script_.empty()) {
        SendMessage(from->socket.get(), Encode(FdAttached{}), {lent_->Page()}, MSG_DONTWAIT)
            .IgnoreError();
      } else {
        SendPacket(from->socket.get());
      }
    }
  }

  void PushPacket() {
    if (!channels_.empty()) return SendPacket(channels_.back().socket.get());
    UniqueFd nobody;
    SendPacket(nobody.get());
  }

  void SendPacket(int socket) {
    const uint8_t what = script_.Byte();
    std::string packet;
    switch (static_cast<PacketKind>(what & 3)) {
      case kSlab:
      case kFile: {
        FdLent lent;
        lent.what = (what & 1) == 0 ? FdLent::What::kSlab : FdLent::What::kFile;
        lent.lease = script_.Byte();
        lent.slab = (what & 1) == 0 ? script_.Byte() : 0;
        lent.bytes = (what & 4) == 0 ? kSlabBytes : script_.Number<uint64_t>();
        packet = Encode(lent);
        break;
      }
      case kAttached:
        packet = Encode(FdAttached{static_cast<absl::StatusCode>(script_.Byte())});
        break;
      case kAnyPacket:
        packet = script_.Bytes();
        break;
    }
    const uint8_t kind = script_.Byte();
    std::vector<int> fds((what & 8) == 0 ? 1 : (what >> 4), lent_->Of(kind));
    SendMessage(socket, packet, fds, MSG_DONTWAIT).IgnoreError();
  }

  const Sockets* const sockets_;
  const Lent* const lent_;
  const uint8_t options_;
  const bool honest_hello_;
  const FuzzInput whole_script_;
  // The thread's.
  FuzzInput script_;
  std::list<Connection> calls_, channels_;
  size_t answers_ = 0;
  bool silent_ = false;

  const UniqueFd wake_;
  std::thread thread_;  // last: it uses the members above
};

}  // namespace cairn::testing
