#include "tests/node/node_fixture.h"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <chrono>
#include <cstring>
#include <filesystem>
#include <stdexcept>
#include <thread>

#include "server/storage/posix_storage.h"
#include "tests/support/await.h"

namespace cairn::testing {

Status MapKeeper::Hold(SlabId slab, uint64_t bytes, fact::SlabUse use, int fd) {
  UniqueFd dup(::dup(fd));
  if (!dup.valid()) return ErrnoStatus(errno, "dup");
  MutexLock lock(&mu_);
  slabs_[slab] = {slab, bytes, std::move(dup), use};
  return absl::OkStatus();
}

void MapKeeper::Drop(SlabId slab) {
  MutexLock lock(&mu_);
  slabs_.erase(slab);
}

void MapKeeper::HoldSession(SessionId session, int channel, int pidfd, int progress,
                            std::function<void(Status)> done) {
  node::HeldSession held;
  held.session = session;
  held.channel = UniqueFd(::dup(channel));
  held.pidfd = UniqueFd(::dup(pidfd));
  held.progress = UniqueFd(::dup(progress));
  {
    MutexLock lock(&mu_);
    sessions_[session] = std::move(held);
  }
  done(absl::OkStatus());
}

void MapKeeper::DropSession(SessionId session) {
  MutexLock lock(&mu_);
  sessions_.erase(session);
}

size_t MapKeeper::slabs() const {
  MutexLock lock(&mu_);
  return slabs_.size();
}

size_t MapKeeper::sessions() const {
  MutexLock lock(&mu_);
  return sessions_.size();
}

std::vector<SlabId> MapKeeper::SlabsOf(uint64_t at_least_bytes) const {
  std::vector<SlabId> found;
  MutexLock lock(&mu_);
  for (const auto& [id, slab] : slabs_) {
    if (slab.bytes >= at_least_bytes) found.push_back(id);
  }
  return found;
}

void MapKeeper::Forget() {
  MutexLock lock(&mu_);
  slabs_.clear();
  sessions_.clear();
}

node::Inherited MapKeeper::Inherit(const UniqueFd& journal, const UniqueFd& fd_listener) const {
  node::Inherited inherited;
  inherited.journal = *journal.Dup();
  if (fd_listener.valid()) inherited.fd_listener = *fd_listener.Dup();
  MutexLock lock(&mu_);
  for (const auto& [id, slab] : slabs_) {
    const auto use = knows_uses_ ? slab.use : fact::SlabUse::kObjects;
    inherited.slabs.push_back({id, slab.bytes, *slab.fd.Dup(), use});
  }
  for (const auto& [id, held] : sessions_) {
    inherited.sessions.push_back(
        {id, *held.channel.Dup(), *held.pidfd.Dup(), *held.progress.Dup()});
  }
  return inherited;
}

UniqueFd ListenUnix(const std::string& path, int type) {
  UniqueFd listener(socket(AF_UNIX, type | SOCK_CLOEXEC, 0));
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  std::strncpy(address.sun_path, path.c_str(), sizeof(address.sun_path) - 1);
  EXPECT_EQ(bind(listener.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  EXPECT_EQ(listen(listener.get(), 64), 0);
  return listener;
}

void NodeFixture::SetUp() {
  RaiseDescriptorLimit();
  std::string pattern = std::filesystem::temp_directory_path() / "cairn-node-XXXXXX";
  ASSERT_NE(mkdtemp(pattern.data()), nullptr);
  folder_ = pattern;
  std::filesystem::create_directory(Path("storage"));
  std::filesystem::create_directory(Path("catalog"));
  options_.engine.budget_bytes = 64 << 20;
  options_.engine.storage = with_storage_;
  options_.engine.default_policy.mode = PersistMode::kOnDemand;
  options_.journal.bytes = 8 << 20;
  options_.name = "testnode";
  options_.version = "test";
  options_.fd_socket = Path("fd.sock");
  options_.storage_root = Path("storage");
  options_.check_invariants = true;
  journal_ = *journal::Journal::MakeFile(options_.journal);
  fd_listener_ = ListenUnix(options_.fd_socket, SOCK_SEQPACKET);
}

void NodeFixture::TearDown() {
  StopNode();
  std::filesystem::remove_all(folder_);
}

void NodeFixture::StartNode() {
  cache::Options cache;
  auto started = cache::Cache::Start(cache, &keeper_);
  ASSERT_TRUE(started.ok()) << started.status();
  cache_ = *std::move(started);
  options_.engine.storage = with_storage_;
  if (with_storage_ && make_storage_) {
    storage_ = make_storage_();
  } else if (with_storage_) {
    storage::PosixOptions storage;
    storage.root = Path("storage");
    auto made = storage::MakePosixStorage(storage);
    ASSERT_TRUE(made.ok()) << made.status();
    storage_ = *std::move(made);
  }
  node::Rooms rooms;
  rooms.clock = RealClock();
  rooms.cache = cache_.get();
  rooms.storage = storage_.get();
  rooms.holder = &keeper_;
  rooms.transport = transport_;
  if (with_catalog_) {
    rooms.open_catalog = [path = CatalogPath()] {
      std::string note;
      return catalog::OpenSqliteCatalog(path, {}, &note);
    };
  }
  node::Inherited inherited = keeper_.Inherit(journal_, fd_listener_);
  inherited.restarts = restarts_;
  inherited.safe_mode = safe_mode_;
  auto node = node::Node::Start(options_, rooms, std::move(inherited));
  ASSERT_TRUE(node.ok()) << node.status();
  node_ = *std::move(node);
}

void NodeFixture::StopNode() {
  node_.reset();
  storage_.reset();
  cache_.reset();
}

std::unique_ptr<catalog::Catalog> NodeFixture::OpenCatalog() {
  // While the node makes the file, SQLite says at once that it is locked.
  StatusOr<std::unique_ptr<catalog::Catalog>> opened;
  (void)Await([&] {
    std::string note;
    opened = catalog::OpenSqliteCatalog(CatalogPath(), {}, &note);
    return !absl::IsUnavailable(opened.status());
  });
  if (!opened.ok()) throw std::runtime_error(opened.status().ToString());
  return *std::move(opened);
}

}  // namespace cairn::testing
