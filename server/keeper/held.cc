#include "server/keeper/held.h"

#include <errno.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <algorithm>
#include <new>
#include <utility>

#include "absl/strings/str_cat.h"

namespace cairn::keeper {
namespace {

constexpr rlim_t kSpareDescriptors = 64;

}  // namespace

StatusOr<UniqueFd> MakeBlackBox() {
  return MakeMemfd("cairn-black-box", node::kBlackBoxBytes, 0600);
}

Status ForgetBlackBox(const UniqueFd& black_box) {
  const std::string zeros(node::kBlackBoxBytes, '\0');
  return PwriteAll(black_box.get(), zeros.data(), zeros.size(), 0);
}

Status Held::Hold(Message* message, bool fds_lost) {
  CAIRN_RETURN_IF_ERROR(CheckRoom(message->fds, fds_lost));
  const Item& item = message->items.front();
  try {
    if (message->type == MessageType::kHoldSlab) {
      slabs_[item.id] = {item.id, item.value, std::move(message->fds.front()),
                         UseOf(message->items[1].value)};
      return absl::OkStatus();
    }
    auto fd = message->fds.begin();
    node::HeldSession& session = sessions_[item.id];
    session = {};
    session.session = item.id;
    if ((item.value & kHasChannel) != 0) session.channel = std::move(*fd++);
    if ((item.value & kHasPidfd) != 0) session.pidfd = std::move(*fd++);
    if ((item.value & kHasProgress) != 0) session.progress = std::move(*fd++);
    return absl::OkStatus();
  } catch (const std::bad_alloc&) {
    return absl::ResourceExhaustedError("the keeper has no memory left to note it");
  }
}

// The next daemon must find room for all that it inherits beside what it opens itself, and this
// process for starting it. Descriptors get the lowest free number: a high one means that those
// below it are taken.
Status Held::CheckRoom(const std::vector<UniqueFd>& fds, bool fds_lost) const {
  rlimit limit = {};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return ErrnoStatus(errno, "getrlimit");
  const rlim_t spare = std::min<rlim_t>(kSpareDescriptors, limit.rlim_cur / 4);
  bool room = !fds_lost;
  for (const UniqueFd& fd : fds) room &= static_cast<rlim_t>(fd.get()) + spare < limit.rlim_cur;
  if (room) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrCat("the keeper has no descriptor left: its limit (RLIMIT_NOFILE) is ",
                   limit.rlim_cur, ", it holds ", slabs_.size(), " slabs and ", sessions_.size(),
                   " sessions, and keeps ", spare, " free for the next daemon"));
}

void Held::DropSession(SessionId session) {
  const auto found = sessions_.find(session);
  if (found == sessions_.end()) return;
  // A bare close would tell the client nothing while the daemon has a descriptor of it too.
  if (found->second.channel.valid()) ::shutdown(found->second.channel.get(), SHUT_RDWR);
  sessions_.erase(found);
}

void Held::AppendInheritance(std::deque<Outgoing>* queue) const {
  std::vector<Item> items;
  std::vector<int> fds;
  const auto flush = [&](MessageType type) {
    if (items.empty()) return;
    queue->push_back({Encode(type, items), std::move(fds)});
    items.clear();
    fds.clear();
  };
  for (const fact::SlabUse use : {fact::SlabUse::kObjects, fact::SlabUse::kManifests}) {
    for (const auto& [id, slab] : slabs_) {
      if (slab.use != use) continue;
      if (fds.size() + 1 > kMaxFdsPerMessage) flush(MessageType::kSlabs);
      if (items.empty()) items.push_back({static_cast<uint64_t>(use), 0});
      items.push_back({id, slab.bytes});
      fds.push_back(slab.fd.get());
    }
    flush(MessageType::kSlabs);
  }
  for (const auto& [id, session] : sessions_) {
    if (fds.size() + kFdsPerSession > kMaxFdsPerMessage || items.size() >= kMaxFdsPerMessage) {
      flush(MessageType::kSessions);
    }
    uint64_t which = 0;
    const auto add = [&](const UniqueFd& fd, uint64_t bit) {
      if (!fd.valid()) return;
      which |= bit;
      fds.push_back(fd.get());
    };
    add(session.channel, kHasChannel);
    add(session.pidfd, kHasPidfd);
    add(session.progress, kHasProgress);
    items.push_back({id, which});
  }
  flush(MessageType::kSessions);
  queue->push_back({Encode(MessageType::kEnd, {{slabs_.size(), sessions_.size()}}), {}});
}

}  // namespace cairn::keeper
