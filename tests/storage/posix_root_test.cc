// Which directory is the storage: its marker, what lacks one, what has another (R32).
#include <sys/stat.h>

#include <thread>

#include "common/root_marker.h"
#include "tests/storage/posix_fixture.h"

namespace cairn::storage {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

class PosixRoot : public PosixFixture {
 protected:
  PosixRoot() : away_(root_ + ".away") {}
  ~PosixRoot() override { fs::remove_all(away_); }

  std::string Marker() const { return root_ + "/" + kRootMarker; }
  // OK when a checkpoint can be written and published there.
  Status Persist(Step step) {
    CAIRN_RETURN_IF_ERROR(Write(MakePart(Key(step, 100))));
    return storage_->Publish(Key(step, 100), Me()).status();
  }
  void ExpectAway(const std::string& why) {
    const Status status = Persist(9);
    EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(why));
    EXPECT_THAT(std::string(status.message()), HasSubstr(root_));
  }
  std::unique_ptr<Storage> MakeOne(bool require_marker) {
    PosixOptions options;
    options.root = root_;
    options.require_marker = require_marker;
    return *MakePosixStorage(options);
  }

  const std::string away_;
};

TEST_F(PosixRoot, ItsFirstDaemonGivesItAMarker) {
  const auto identity = storage_->Identity();
  ASSERT_TRUE(identity.ok()) << identity.status();
  EXPECT_EQ(Bytes(Marker()), identity->id + "\n");
  EXPECT_TRUE(CheckRootId(identity->id).ok());
}

TEST_F(PosixRoot, DaemonsThatMeetInANewRootAgree) {
  std::vector<std::string> ids(8);
  std::vector<std::thread> daemons;
  for (std::string& id : ids) {
    daemons.emplace_back([this, &id] { id = Make()->Identity()->id; });
  }
  for (std::thread& daemon : daemons) daemon.join();
  for (const std::string& id : ids) EXPECT_EQ(id, ids[0]);
  for (const auto& entry : fs::directory_iterator(root_)) EXPECT_EQ(entry.path(), Marker());
}

TEST_F(PosixRoot, FromBeforeThereWereMarkersKeepsItsJobs) {
  WriteAndPublish(MakePart(Key(5, 100)));
  fs::remove(Marker());
  storage_ = Make();
  EXPECT_TRUE(storage_->Identity().ok());
  EXPECT_THAT(Stored(), testing::ElementsAre("5@100.0/"));
}

TEST_F(PosixRoot, MissingAtTheStartIsFoundLater) {
  fs::rename(root_, away_);
  storage_ = MakeOne(/*require_marker=*/true);  // else it would be made
  ExpectAway("ENOENT");
  EXPECT_EQ(storage_->Identity().status().code(), absl::StatusCode::kUnavailable);
  {
    const UniqueFd root(::open(away_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    ASSERT_TRUE(MakeRootMarker(root.get(), DrawRootId()).ok());
  }
  fs::rename(away_, root_);
  EXPECT_TRUE(Persist(1).ok());
}

// --- a root that is missing

// A folder of the test's own, in which the root's parent stands.
class MissingRoot : public PosixRoot {
 protected:
  MissingRoot() : parent_(root_), first_(parent_ + "/files") { root_ = first_; }
  ~MissingRoot() override {
    fs::remove_all(parent_);
    root_ = parent_;
  }

  void Occupy() { std::ofstream(parent_ + "/something").put('x'); }

  const std::string parent_;
  const std::string first_;
};

TEST_F(MissingRoot, IsMadeAndOpenToAllUsers) {
  Occupy();
  const mode_t before = ::umask(077);
  storage_ = Make();
  EXPECT_TRUE(Persist(1).ok());
  ::umask(before);
  struct stat info = {};
  ASSERT_EQ(::stat(root_.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 07777, 0755u);
}

TEST_F(MissingRoot, IsNotMadeInAnEmptyDirectory) {  // a mount point without its file system
  storage_ = Make();
  ExpectAway("`mkdir " + root_ + "`");
  ExpectAway(parent_ + " is empty, as a mount point is");
  EXPECT_TRUE(fs::is_empty(parent_));
  Occupy();  // it was mounted
  EXPECT_TRUE(Persist(1).ok());
}

TEST_F(MissingRoot, IsNotMadeWithTheDirectoryAbove) {
  Occupy();
  root_ = parent_ + "/none/files";
  storage_ = Make();
  ExpectAway("ENOENT");
  EXPECT_FALSE(fs::exists(parent_ + "/none"));
}

TEST_F(MissingRoot, IsNotMadeWhereAMarkerIsRequired) {
  Occupy();
  storage_ = MakeOne(/*require_marker=*/true);
  ExpectAway("ENOENT");
  EXPECT_FALSE(fs::exists(root_));
}

TEST_F(MissingRoot, IsNotMadeOnceThisNodeHasMetItsStorage) {
  Occupy();
  storage_ = Make();
  storage_->Expect(DrawRootId());  // as after the death of the daemon that met it
  ExpectAway("ENOENT");
  storage_ = Make();
  ASSERT_TRUE(Persist(1).ok());
  fs::remove_all(root_);
  ExpectAway("ENOENT");
  EXPECT_FALSE(fs::exists(root_));
}

TEST_F(MissingRoot, IsNotMadeAtTheEndOfALinkThatLeadsNowhere) {
  Occupy();
  fs::create_symlink(parent_ + "/elsewhere", root_);
  storage_ = Make();
  ExpectAway("symbolic link");
  EXPECT_FALSE(fs::exists(parent_ + "/elsewhere"));
}

TEST_F(PosixRoot, ThatIsAFileIsAway) {
  fs::remove_all(root_);
  std::ofstream(root_).put('x');
  ExpectAway("ENOTDIR");
}

TEST_F(PosixRoot, AnEmptyDirectoryInItsPlaceIsNotWrittenTo) {
  ASSERT_TRUE(Persist(1).ok());
  fs::rename(root_, away_);
  ExpectAway("ENOENT");
  fs::create_directory(root_);
  ExpectAway("has no .cairn-root");
  EXPECT_TRUE(fs::is_empty(root_));
  fs::remove(root_);
  fs::rename(away_, root_);
  EXPECT_TRUE(Persist(2).ok());
}

TEST_F(PosixRoot, WithAnotherMarkerIsAnotherStorage) {
  const std::string mine = storage_->Identity()->id;
  fs::rename(root_, away_);
  fs::create_directory(root_);
  const std::string other = Make()->Identity()->id;
  ExpectAway("another storage, with the identity " + other);
  EXPECT_EQ(storage_->Identity()->id, other) << "what stands there is told as it is";
  ExpectAway(mine);
}

TEST_F(PosixRoot, ThatIsACopyIsTheSameRootInAnotherInstance) {
  const RootIdentity mine = *storage_->Identity();
  fs::rename(root_, away_);
  fs::copy(away_, root_, fs::copy_options::recursive);
  const RootIdentity copy = *storage_->Identity();
  EXPECT_EQ(copy.id, mine.id);
  EXPECT_NE(copy.instance, mine.instance);
  EXPECT_TRUE(Persist(1).ok());
}

TEST_F(PosixRoot, ThatMustHaveAMarkerIsGivenNone) {
  storage_ = MakeOne(/*require_marker=*/true);
  ExpectAway("storage.require_marker");
  EXPECT_TRUE(fs::is_empty(root_));
  {
    const UniqueFd root(::open(root_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    ASSERT_TRUE(MakeRootMarker(root.get(), DrawRootId()).ok());
  }
  EXPECT_TRUE(Persist(1).ok());
}

TEST_F(PosixRoot, WithAMarkerThatSaysNothingIsAway) {
  std::ofstream(Marker()) << "mine";
  ExpectAway("does not hold an identity");
}

TEST_F(PosixRoot, IsNotHeldOpenBetweenCalls) {  // else it could not be unmounted
  ASSERT_TRUE(Persist(1).ok());
  for (const auto& entry : fs::directory_iterator("/proc/self/fd")) {
    std::error_code gone;
    const std::string target = fs::read_symlink(entry.path(), gone);
    EXPECT_FALSE(absl::StartsWith(target, root_)) << target;
  }
}

// The path leads elsewhere once the bytes are written, and before they are acknowledged.
TEST_F(PosixRoot, ReplacedWhileItIsWrittenToIsNotAcknowledged) {
  class Replacing final : public ObjectSource {
   public:
    Replacing(const ObjectSource* bytes, std::function<void()> replace)
        : bytes_(bytes), replace_(std::move(replace)) {}
    Status Read(uint64_t offset, absl::Span<char> into) const override {
      if (!done_.exchange(true)) replace_();
      return bytes_->Read(offset, into);
    }

   private:
    const ObjectSource* const bytes_;
    const std::function<void()> replace_;
    mutable std::atomic<bool> done_{false};
  };
  const Part part = MakePart(Key(1, 100), 0, 1, {{"one", 1000}});
  const Replacing source(part.objects.at(0).get(), [this] {
    fs::rename(root_, away_);
    fs::create_directory(root_);
  });
  ASSERT_TRUE(storage_->Identity().ok());
  const Status written = storage_->WriteParts(
      Key(1, 100), Me(), {{&part.manifest, EncodeManifest(part.manifest), {&source}}});
  EXPECT_EQ(written.code(), absl::StatusCode::kUnavailable) << written;
}

}  // namespace
}  // namespace cairn::storage
