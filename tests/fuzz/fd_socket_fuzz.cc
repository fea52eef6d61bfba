// What a client sends on the fd socket, to a node's real sessions: packets of any bytes and attaches as they should
// be, with the right secret and wrong ones, each with descriptors of any kind and number; on several connections,
// hanging up at any moment, while the node lends, looks and ends sessions. After each input no session is left, and
// not one descriptor more than before it.
//
// An input is a row of steps: a byte that says which (Step below) and on which connection, then what it needs.
#include <fcntl.h>
#include <sys/eventfd.h>
#include <sys/mman.h>

#include <array>
#include <memory>
#include <string>
#include <vector>

#include "common/fd_channel.h"
#include "glog/logging.h"
#include "server/node/sessions.h"
#include "tests/fuzz/fuzz_input.h"
#include "tests/fuzz/fuzz_support.h"
#include "tests/node/node_fixture.h"

namespace cairn::testing {
namespace {

constexpr int kMaxSteps = 24;
constexpr int kAnswerMs = 2, kGoodAnswerMs = 1000;
constexpr size_t kHeaderBytes = 8;

enum Step : uint8_t {
  kPacket,         // of any bytes
  kAttach,         // the header as it should be, then any bytes
  kGoodAttach,     // the session and its secret, and any descriptors
  kPerfectAttach,  // the same with the pidfd that it takes
  kGuessedSecret,
  kOtherSession,
  kBegin,  // another session, from now on the one that is spoken of
  kEnd,    // of the session, whatever its channel is at
  kCloseThrift,
  kPush,  // the node lends it descriptors
  kProgress,
  kReceive,
  kStopWriting,
  kHangUp,
};

// Descriptors of all kinds that a packet may carry.
class Descriptors {
 public:
  Descriptors() {
    int ends[2];
    Add(OpenPidfd(getpid())->Release());
    Add(OpenPidfd(getppid())->Release());
    if (pipe2(ends, O_CLOEXEC) == 0) Add(ends[0]), Add(ends[1]);
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0) Add(ends[0]), Add(ends[1]);
    Add(memfd_create("fuzz", MFD_CLOEXEC));
    Add(eventfd(0, EFD_CLOEXEC));
    Add(open("/dev/null", O_RDWR | O_CLOEXEC));
    Add(open("/", O_PATH | O_CLOEXEC));
  }
  int Of(size_t kind) const { return all_[kind % all_.size()].get(); }
  int Pidfd() const { return Of(0); }

 private:
  void Add(int fd) {
    if (fd < 0) Finding("no descriptor to send");
    all_.emplace_back(fd);
  }
  std::vector<UniqueFd> all_;
};

// One connection, and the page that came on it.
struct Client {
  UniqueFd socket;
  Mapping page;
};

class Inputs {
 public:
  Inputs() : loops_(/*max_loops=*/4) {
    FLAGS_minloglevel = google::GLOG_FATAL;
    node::SessionsOptions options;
    options.max_pending_of_user = 3;  // of four connections
    sessions_ = std::make_unique<node::Sessions>(options, &loops_, &keeper_, [](SessionId) {});
    const Status started = sessions_->Start(ListenUnix(folder_.Path("fd"), SOCK_SEQPACKET));
    if (!started.ok()) Finding(started.ToString());
    // This user's loops have their threads and descriptors from now on.
    constexpr uint8_t kWarm[] = {kPerfectAttach, kPerfectAttach | 16, kPerfectAttach | 32};
    PlaySteps(FuzzInput(kWarm, sizeof kWarm));
    (void)DescriptorsAtRest();
  }
  ~Inputs() {
    sessions_->Stop();
    loops_.Stop();
  }

  void Play(FuzzInput input) {
    const size_t descriptors =
        OpenDescriptors();  // libFuzzer may have opened some since the last input
    PlaySteps(input);
    AwaitCalm("descriptors", [&] { return OpenDescriptors() == descriptors; });
  }

 private:
  void PlaySteps(FuzzInput input) {
    std::array<Client, 4> clients;
    Begin(true);
    for (int step = 0; step < kMaxSteps && !input.empty(); ++step) {
      const uint8_t what = input.Byte();
      Client& client = clients[(what >> 4) % clients.size()];
      if (!client.socket.valid()) client.socket = ConnectUnix(folder_.Path("fd"), SOCK_SEQPACKET);
      Take(static_cast<Step>(what & 15), &client, &input);
      const bool at_once = (what & 64) != 0;  // the next step, before any answer to this one
      if (!at_once) Receive(&client, kAnswerMs);
    }
    for (Client& client : clients) client = Client();
    AwaitGoodAttach();
    for (const SessionId session : begun_) sessions_->ConnectionClosed(session);
    AwaitCalm("sessions", [&] {
      const auto lives = [&](SessionId session) { return sessions_->Find(session).has_value(); };
      return std::none_of(begun_.begin(), begun_.end(), lives) && keeper_.sessions() == 0;
    });
    begun_.clear();
  }

  void Begin(bool takes_fds) {
    session_ = node::SessionInfo();
    session_.id = ++last_session_;
    session_.secret = std::string(kSessionSecretBytes, static_cast<char>('a' + begun_.size()));
    session_.takes_fds = takes_fds;
    session_.uid = getuid();
    sessions_->Add(session_);
    begun_.push_back(session_.id);
  }

  // Connections are accepted in their order: once this one is served, the others have been met, too.
  void AwaitGoodAttach() {
    Begin(true);
    AwaitCalm("an attach as it should be", [&] {
      Client good;
      good.socket = ConnectUnix(folder_.Path("fd"), SOCK_SEQPACKET);
      SendPerfectAttach(good);
      Receive(&good, kGoodAnswerMs);
      return good.page.valid();
    });
  }

  void SendPerfectAttach(const Client& client) {
    SendMessage(client.socket.get(), *Encode(FdAttach{session_.id, session_.secret}),
                {kinds_.Pidfd()}, MSG_DONTWAIT)
        .IgnoreError();
  }

  void Take(Step step, Client* client, FuzzInput* input) {
    FdAttach attach{session_.id, session_.secret};
    switch (step) {
      case kPacket:
        return Send(*client, input->Bytes(), input);
      case kAttach:
        return Send(*client, Encode(attach)->substr(0, kHeaderBytes) + input->Bytes(), input);
      case kGoodAttach:
        return Send(*client, *Encode(attach), input);
      case kPerfectAttach:
        return SendPerfectAttach(*client);
      case kGuessedSecret:
        attach.secret[input->Byte() % kSessionSecretBytes] ^= static_cast<char>(input->Byte());
        return Send(*client, *Encode(attach), input);
      case kOtherSession:
        attach.session = input->Number<uint64_t>();
        return Send(*client, *Encode(attach), input);
      case kBegin:
        return Begin((input->Byte() & 1) != 0);
      case kEnd:
        sessions_->End(session_.id);
        return;
      case kCloseThrift:
        sessions_->ConnectionClosed(session_.id);
        return;
      case kPush:
        return Push(input->Byte());
      case kProgress: {
        const std::string page = input->Bytes();
        if (client->page.valid()) page.copy(client->page.data(), kPageBytes);
        (void)sessions_->Progress(session_.id);
        return;
      }
      case kReceive:
        return Receive(client, kAnswerMs);
      case kStopWriting:
        shutdown(client->socket.get(), SHUT_WR);
        return;
      case kHangUp:
        *client = Client();
        return;
    }
  }

  // With descriptors: so many, from one kind on; the last may be the connection itself.
  void Send(const Client& client, const std::string& bytes, FuzzInput* input) {
    const size_t number = std::min<size_t>(input->Byte(), kMaxFdsPerMessage);
    const uint8_t first = input->Byte();
    std::vector<int> fds;
    for (size_t i = 0; i < number; ++i) fds.push_back(kinds_.Of(first + i));
    if (!fds.empty() && (first & 128) != 0) fds.back() = client.socket.get();
    SendMessage(client.socket.get(), bytes, fds, MSG_DONTWAIT).IgnoreError();
  }

  // Until the channel is full, if its client does not read.
  void Push(uint8_t times) {
    FdLent lent;
    for (lent.lease = 1; lent.lease <= times; ++lent.lease) {
      if (!sessions_->Push(session_.id, lent, kinds_.Of(6)).ok()) return;
    }
  }

  // What has come: descriptors are closed, a page is kept.
  static void Receive(Client* client, int patience_ms) {
    while (client->socket.valid()) {
      const StatusOr<bool> readable = WaitReadable(client->socket.get(), patience_ms);
      if (!readable.ok() || !*readable) return;
      patience_ms = 0;
      StatusOr<ReceivedMessage> message =
          ReceiveMessage(client->socket.get(), kFdChannelMaxMessage, MSG_DONTWAIT);
      if (!message.ok() || message->bytes.empty()) {
        *client = Client();
        return;
      }
      const StatusOr<FdAttached> attached = DecodeFdAttached(message->bytes);
      if (attached.ok() && attached->code == absl::StatusCode::kOk) {
        if (message->fds.size() != 1 || client->page.valid())
          Finding("attached twice, or without a page");
        client->page = *Mapping::MapSealed(message->fds[0].get(), 0, kPageBytes,
                                           PROT_READ | PROT_WRITE, MAP_SHARED);
      } else if (!attached.ok() && !DecodeFdLent(message->bytes).ok()) {
        Finding("a packet that cannot be read");
      }
    }
  }

  const SocketFolder folder_;
  const Descriptors kinds_;
  MapKeeper keeper_;
  node::UserLoops loops_;
  std::unique_ptr<node::Sessions> sessions_;
  node::SessionInfo session_;  // that is spoken of
  std::vector<SessionId> begun_;
  SessionId last_session_ = 0;
};

}  // namespace
}  // namespace cairn::testing

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static cairn::testing::Inputs inputs;
  inputs.Play(cairn::testing::FuzzInput(data, size));
  return 0;
}
