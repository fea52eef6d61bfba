// A daemon for keeper_test: connects to the keeper, takes its inherited, and does what one line
// after another on the Thrift socket tells it.
//
//   keeper_child serve          obeys
//   keeper_child refuse         exits with 3 before it holds anything
//   keeper_child drain          obeys, and exits with 7 at SIGTERM
//   keeper_child replaced       obeys, and exits at SIGTERM as one that wants the next daemon in its place, if nothing was
//                               held when it started
//   keeper_child failpoint      exits, in its first life, as at a failpoint, before it serves
//   keeper_child crash          kills itself at once, unless it is started in safe mode; then it
//   obeys
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstring>
#include <future>
#include <iostream>
#include <map>
#include <sstream>
#include <string>

#include "common/failpoint.h"
#include "server/cache/cache.h"
#include "server/journal/journal.h"
#include "server/keeper/death.h"
#include "server/keeper/link.h"
#include "server/keeper/wire.h"

namespace cairn::keeper {
namespace {

void Must(const Status& status, const char* what) {
  if (status.ok()) return;
  std::cerr << "keeper_child: " << what << ": " << status << "\n";
  ::_exit(99);
}

template <typename T>
T Must(StatusOr<T> value, const char* what) {
  Must(value.status(), what);
  return *std::move(value);
}

volatile sig_atomic_t sigterms = 0;

void CountSigterm(int) { sigterms = sigterms + 1; }

class TestDaemon {
 public:
  TestDaemon(int keeper_fd, std::string arguments) : arguments_(std::move(arguments)) {
    link_ = Must(Link::Connect(keeper_fd, &inherited_), "Connect");
    cache_ = Must(cache::Cache::Start({}, link_.get()), "Cache::Start");
    journal_ = Must(journal::Journal::Open(std::move(inherited_.journal), {}, &contents_),
                    "Journal::Open");
    for (node::HeldSlab& slab : inherited_.slabs) {
      Must(cache_->Adopt(slab.slab, slab.bytes, std::move(slab.fd)), "Adopt");
      slab_bytes_[slab.slab] = slab.bytes;
      if (slab.use == fact::SlabUse::kManifests) manifest_slabs_[slab.slab] = slab.bytes;
    }
    for (node::HeldSession& session : inherited_.sessions) {
      sessions_[session.session] = std::move(session);
    }
  }

  const node::Inherited& inherited() const { return inherited_; }
  bool holds_nothing() const { return slab_bytes_.empty(); }

  [[noreturn]] void Serve() {
    link_->Serving();
    while (true) {
      const UniqueFd client(
          ::accept4(inherited_.thrift_listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
      std::string line;
      for (char c; ::read(client.get(), &c, 1) == 1;) {
        if (c != '\n') {
          line += c;
          continue;
        }
        const std::string answer = Obey(line) + "\n";
        line.clear();
        if (::send(client.get(), answer.data(), answer.size(), MSG_NOSIGNAL) < 0) break;
      }
    }
  }

 private:
  // One function: the list of all that a test may ask of the child, a few lines each.
  std::string Obey(const std::string& line) {
    std::istringstream words(line);
    std::string verb, text;
    uint64_t id = 0, number = 0;
    words >> verb;
    if (verb == "pid") return std::to_string(::getpid());
    if (verb == "restarts") return std::to_string(inherited_.restarts);
    if (verb == "arguments") return arguments_;
    if (verb == "safe_mode") return inherited_.safe_mode;
    if (verb == "slabs") return List(slab_bytes_, [](uint64_t bytes) { return bytes; });
    if (verb == "inherited_for_manifests")
      return List(manifest_slabs_, [](uint64_t bytes) { return bytes; });
    if (verb == "sessions") {
      return List(sessions_, [](const node::HeldSession& session) {
        return session.channel.valid() + 2 * session.pidfd.valid() + 4 * session.progress.valid();
      });
    }
    if (verb == "facts") return Facts();
    if (verb == "count_sigterms")
      return ::signal(SIGTERM, CountSigterm) == SIG_ERR ? "failed" : "ok";
    if (verb == "sigterms") return std::to_string(sigterms);

    if (verb == "box_write") {
      words >> text;
      Must(PwriteAll(inherited_.black_box.get(), text.data(), text.size(), 0), "PwriteAll");
      return "ok";
    }
    if (verb == "box_read") {
      text.resize(4);
      Must(PreadAll(inherited_.black_box.get(), text.data(), text.size(), 0), "PreadAll");
      return text[0] == '\0' ? "nothing" : text;
    }

    words >> id;
    if (verb == "exit") ::_exit(static_cast<int>(id));
    if (verb == "make") {
      words >> number >> text;
      std::promise<Status> made;
      const auto use = text == "manifest" ? fact::SlabUse::kManifests : fact::SlabUse::kObjects;
      cache_->Make(id, number, use, cache::Pages::kInTurn,
                   [&](Status status) { made.set_value(std::move(status)); });
      if (const Status status = made.get_future().get(); !status.ok()) return Word(status);
      Must(cache_->Write(id, 0, text), "Write");
      slab_bytes_[id] = number;
      return "ok";
    }
    if (verb == "destroy") {
      std::promise<void> gone;
      cache_->Destroy(id, [&] { gone.set_value(); });
      gone.get_future().get();
      return "ok";
    }
    if (verb == "read") {
      words >> number;
      text.resize(number);
      Must(cache_->Read(id, 0, absl::MakeSpan(text)), "Read");
      return text;
    }
    if (verb == "append") {
      Must(journal_->Append({fact::SlabGone{.slab = id}}), "Append");
      return "ok";
    }
    if (verb == "begin_session") {  // the client is waiting to be accepted
      node::HeldSession& session = sessions_[id];
      session.channel.Reset(
          ::accept4(inherited_.fd_listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
      ucred peer = {};
      socklen_t length = sizeof(peer);
      ::getsockopt(session.channel.get(), SOL_SOCKET, SO_PEERCRED, &peer, &length);
      session.pidfd = Must(OpenPidfd(peer.pid), "OpenPidfd");
      session.progress.Reset(::memfd_create("progress", MFD_CLOEXEC));
      return HoldSession(id);
    }
    if (verb == "begin_bare_session") {  // of a client that takes no descriptors
      return HoldSession(id);
    }
    if (verb == "say") {
      words >> text;
      Must(SendMessage(sessions_[id].channel.get(), text, {}), "say");
      return "ok";
    }
    if (verb == "alive") return PidfdAlive(sessions_[id].pidfd.get()) ? "yes" : "no";
    if (verb == "end_session") {
      link_->DropSession(id);  // and keeps its own descriptor open
      return "ok";
    }
    if (verb == "hold_and_die") {  // `id` slabs, numbered from 1, without waiting for an answer
      for (uint64_t slab = 1; slab <= id; ++slab) {
        const UniqueFd fd(::memfd_create("held", MFD_CLOEXEC));
        if (::ftruncate(fd.get(), 4096) != 0) ::_exit(98);
        Must(SendMessage(KeeperFd(),
                         Encode(MessageType::kHoldSlab, {{slab, 4096}, {1'000'000 + slab, 0}}),
                         {fd.get()}),
             "sending");
      }
      ::raise(SIGKILL);
    }
    if (verb == "garble") {  // nothing that a keeper understands
      Must(SendMessage(KeeperFd(), "garbage", {}), "garble");
      return "ok";
    }
    return "unknown verb";
  }

  // "ok", or why the keeper refused.
  std::string HoldSession(SessionId id) {
    std::promise<Status> held;
    node::HeldSession& session = sessions_[id];
    link_->HoldSession(id, session.channel.get(), session.pidfd.get(), session.progress.get(),
                       [&](Status status) { held.set_value(std::move(status)); });
    return Word(held.get_future().get());
  }

  static std::string Word(const Status& status) { return status.ok() ? "ok" : status.ToString(); }

  static int KeeperFd() { return ::atoi(::getenv("CAIRN_KEEPER_FD")); }

  template <typename Map, typename Value>
  static std::string List(const Map& map, const Value& value) {
    std::string list;
    for (const auto& [id, entry] : map) {
      list += (list.empty() ? "" : " ") + std::to_string(id) + ":" + std::to_string(value(entry));
    }
    return list;
  }

  std::string Facts() const {
    std::string list;
    for (const Fact& fact : contents_.facts) {
      list += (list.empty() ? "" : " ") + std::to_string(std::get<fact::SlabGone>(fact).slab);
    }
    return list;
  }

  const std::string arguments_;
  node::Inherited inherited_;
  std::unique_ptr<Link> link_;
  std::unique_ptr<cache::Cache> cache_;
  std::unique_ptr<journal::Journal> journal_;
  journal::Contents contents_;
  std::map<SlabId, uint64_t> slab_bytes_, manifest_slabs_;
  std::map<SessionId, node::HeldSession> sessions_;
};

}  // namespace
}  // namespace cairn::keeper

int main(int argc, char** argv) {
  const std::string how = argc > 1 ? argv[1] : "serve";
  if (how == "refuse") return 3;
  if (how == "drain") ::signal(SIGTERM, [](int) { ::_exit(7); });
  // They arrive blocked. Otherwise this daemon leaves them to their default.
  sigset_t none;
  sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
  ::signal(SIGHUP, SIG_DFL);
  const char* const keeper_fd = ::getenv("CAIRN_KEEPER_FD");
  if (keeper_fd == nullptr) return 97;
  std::string arguments;
  for (int i = 1; i < argc; ++i) arguments += (i > 1 ? " " : "") + std::string(argv[i]);
  cairn::keeper::TestDaemon daemon(::atoi(keeper_fd), arguments);
  if (how == "replaced" && daemon.holds_nothing()) {
    ::signal(SIGTERM, [](int) { ::_exit(cairn::keeper::kHandsOverExitCode); });
  }
  if (how == "failpoint" && daemon.inherited().restarts == 0) ::_exit(cairn::kFailpointExitCode);
  if (how == "crash" && daemon.inherited().safe_mode.empty()) ::raise(SIGKILL);
  daemon.Serve();
}
