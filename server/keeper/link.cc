#include "server/keeper/link.h"

#include <errno.h>
#include <fcntl.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "server/keeper/wire.h"

namespace cairn::keeper {
namespace {

Status TakeSlabs(Message message, node::Inherited* inherited) {
  for (size_t i = 0; i < message.items.size(); ++i) {
    inherited->slabs.push_back(
        {message.items[i].id, message.items[i].value, std::move(message.fds[i])});
  }
  return absl::OkStatus();
}

Status TakeSessions(Message message, node::Inherited* inherited) {
  auto next = message.fds.begin();
  for (const Item& item : message.items) {
    node::HeldSession& session = inherited->sessions.emplace_back();
    session.session = item.id;
    if ((item.value & kHasChannel) != 0) session.channel = std::move(*next++);
    if ((item.value & kHasPidfd) != 0) session.pidfd = std::move(*next++);
    if ((item.value & kHasProgress) != 0) session.progress = std::move(*next++);
  }
  return absl::OkStatus();
}

Status CheckComplete(const Message& end, const node::Inherited& inherited) {
  const Item& counts = end.items.front();
  if (!inherited.journal.valid() || counts.id != inherited.slabs.size() ||
      counts.value != inherited.sessions.size()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "keeper: promised ", counts.id, " slabs and ", counts.value, " sessions, sent ",
        inherited.slabs.size(), " and ", inherited.sessions.size()));
  }
  return absl::OkStatus();
}

}  // namespace

StatusOr<std::unique_ptr<Link>> Link::Connect(int keeper_fd, node::Inherited* inherited) {
  UniqueFd socket(keeper_fd);
  if (::fcntl(keeper_fd, F_SETFD, FD_CLOEXEC) != 0) {
    return ErrnoStatus(errno, absl::StrCat("CAIRN_KEEPER_FD: ", keeper_fd));
  }
  while (true) {
    StatusOr<ReceivedMessage> received = ReceiveMessage(keeper_fd, kMaxMessage);
    if (!received.ok()) return Annotate(received.status(), "reading the inheritance");
    if (received->bytes.empty()) return absl::UnavailableError("keeper: it is gone");
    CAIRN_ASSIGN_OR_RETURN(Message message, Decode(*std::move(received)));
    switch (message.type) {
      case MessageType::kBegin:
        inherited->restarts = static_cast<int>(message.items.front().id);
        inherited->safe_mode = std::move(message.text);
        inherited->journal = std::move(message.fds[0]);
        inherited->thrift_listener = std::move(message.fds[1]);
        inherited->fd_listener = std::move(message.fds[2]);
        break;
      case MessageType::kSlabs:
        CAIRN_RETURN_IF_ERROR(TakeSlabs(std::move(message), inherited));
        break;
      case MessageType::kSessions:
        CAIRN_RETURN_IF_ERROR(TakeSessions(std::move(message), inherited));
        break;
      case MessageType::kEnd:
        CAIRN_RETURN_IF_ERROR(CheckComplete(message, *inherited));
        return std::unique_ptr<Link>(new Link(std::move(socket)));
      default:
        return absl::InvalidArgumentError("keeper: a message that only a daemon sends");
    }
  }
}

Status Link::Hold(SlabId slab, uint64_t bytes, int fd) {
  return Annotate(SendMessage(socket_.get(), Encode(MessageType::kHoldSlab, {{slab, bytes}}), {fd}),
                  "keeper: holding a slab");
}

// A message that cannot be sent means that the keeper is gone, and everything that it held with it.
void Link::Drop(SlabId slab) {
  SendMessage(socket_.get(), Encode(MessageType::kDropSlab, {{slab, 0}}), {}).IgnoreError();
}

Status Link::HoldSession(SessionId session, int channel, int pidfd, int progress) {
  uint64_t which = 0;
  std::vector<int> fds;
  const auto add = [&](int fd, uint64_t bit) {
    if (fd < 0) return;
    which |= bit;
    fds.push_back(fd);
  };
  add(channel, kHasChannel);
  add(pidfd, kHasPidfd);
  add(progress, kHasProgress);
  return Annotate(
      SendMessage(socket_.get(), Encode(MessageType::kHoldSession, {{session, which}}), fds),
      "keeper: holding a session");
}

void Link::DropSession(SessionId session) {
  SendMessage(socket_.get(), Encode(MessageType::kDropSession, {{session, 0}}), {}).IgnoreError();
}

}  // namespace cairn::keeper
