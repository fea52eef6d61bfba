// One file: all of it speaks one small vocabulary, over one node in this process.
#include "server/node/node.h"

#include <gmock/gmock.h>

#include <atomic>
#include <filesystem>
#include <thread>

#include "absl/strings/str_cat.h"
#include "common/failpoint.h"
#include "tests/node/saving_node.h"
#include "tests/storage/faulty_storage.h"
#include "tests/storage/memory_storage.h"

namespace cairn::testing {
namespace {

using ::testing::HasSubstr;

namespace event = engine::event;
namespace reply = engine::reply;

using NodeTest = SavingNode;

TEST_F(NodeTest, WhatIsCommittedIsThereAfterTheDaemonsDeath) {  // promise 7
  StartNode();
  const SessionId writer = Begin();
  const std::string bytes(3 << 20, 'a');
  ASSERT_TRUE(Save(writer, 1, "model", bytes).ok());
  Restart();
  const SessionId reader = Begin("job", 8);
  EXPECT_EQ(*Load(reader, 1, "model"), bytes);
}

TEST_F(NodeTest, ASessionWithoutAChannelEndsWithTheDaemon) {
  StartNode();
  const SessionId session = Begin();
  Restart();
  EXPECT_EQ(Save(session, 1, "model", "bytes").code(), absl::StatusCode::kUnavailable);
}

TEST_F(NodeTest, PersistedFilesAreTheObjects) {  // promise 9
  StartNode();
  const SessionId session = Begin();
  const std::string bytes(5'000'001, 'p');
  ASSERT_TRUE(Save(session, 4, "dir/model", bytes).ok());
  ASSERT_TRUE(PersistNow(session, 4).ok());
  auto info = WaitFor(session, 4, engine::Level::kPersisted);
  ASSERT_TRUE(info.ok()) << info.status();
  EXPECT_EQ(*ReadFile(Path("storage/job/4/dir/model")), bytes);
}

TEST_F(NodeTest, WhatMemoryLostIsReadFromStorage) {  // promise 1
  StartNode();
  const SessionId session = Begin();
  const std::string bytes(100'000, 's');
  ASSERT_TRUE(Save(session, 4, "model", bytes).ok());
  ASSERT_TRUE(PersistNow(session, 4).ok());
  ASSERT_TRUE(WaitFor(session, 4, engine::Level::kPersisted).ok());
  StopNode();
  journal_ = *journal::Journal::MakeFile(options_.journal);
  keeper_.Forget();
  StartNode();
  const SessionId reader = Begin("job", 9);
  auto loaded = Load(reader, 4, "model");
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  EXPECT_EQ(*loaded, bytes);
}

// A node over storage in memory whose calls can be made to fail.
class NodeOverFaultyStorage : public NodeTest {
 protected:
  NodeOverFaultyStorage() {
    options_.engine.persist_retry_min = 10 * kNanosPerMilli;
    make_storage_ = [this] {
      return storage::MakeFaultyStorage(storage::MakeMemoryStorage(store_), faults_);
    };
  }

  const std::shared_ptr<storage::MemoryStore> store_ = std::make_shared<storage::MemoryStore>();
  const std::shared_ptr<storage::StorageFaults> faults_ =
      std::make_shared<storage::StorageFaults>();
};

TEST_F(NodeOverFaultyStorage, StorageThatLendsNoDescriptorIsReadInChunksByEveryClient) {
  StartNode();
  const SessionId session = Begin();
  const std::string bytes(5'000'001, 's');
  ASSERT_TRUE(Save(session, 4, "model", bytes).ok());
  ASSERT_TRUE(PersistNow(session, 4).ok());
  ASSERT_TRUE(WaitFor(session, 4, engine::Level::kPersisted).ok());
  StopNode();
  journal_ = *journal::Journal::MakeFile(options_.journal);
  keeper_.Forget();
  StartNode();
  // Nothing is pushed over the fd channel: this session has none.
  event::Hello hello;
  hello.caller = CallerOf(0);
  hello.pid = getpid();
  hello.process = "fedcba9876543210";
  hello.job = "job";
  hello.takes_fds = true;
  node::Node::Begun begun = node().Hello(std::move(hello));
  ASSERT_TRUE(begun.info.ok()) << begun.info.status();
  auto loaded = Load(begun.info->id, 4, "model");
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  EXPECT_EQ(*loaded, bytes);
  EXPECT_GT(faults_->Calls(storage::StorageCall::kReadAt), 0);
}

TEST_F(NodeOverFaultyStorage, WhatStorageRefusedOrLostTheAnswerOfIsTriedAgain) {  // promise 1, R5
  using storage::StorageCall;
  faults_->Add({.call = StorageCall::kWriteParts,
                .times = 2,
                .error = absl::ResourceExhaustedError("the disk is full")});
  faults_->Add({.kind = FaultKind::kMaybeHappened, .call = StorageCall::kPublish, .times = 1});
  StartNode();
  const SessionId session = Begin();
  ASSERT_TRUE(Save(session, 4, "model", "bytes").ok());
  ASSERT_TRUE(PersistNow(session, 4).ok());
  auto info = WaitFor(session, 4, engine::Level::kPersisted);
  ASSERT_TRUE(info.ok()) << info.status();
  EXPECT_EQ(faults_->Calls(StorageCall::kWriteParts), 4);
  EXPECT_EQ(faults_->Calls(StorageCall::kPublish), 2);
}

TEST_F(NodeOverFaultyStorage, StorageThatHangsStopsNoSaveAndNoLoad) {  // promise 4
  StartNode();
  const SessionId session = Begin();
  ASSERT_TRUE(Save(session, 4, "model", "four").ok());
  faults_->Add({.kind = FaultKind::kHang, .call = storage::StorageCall::kWriteParts});
  ASSERT_TRUE(PersistNow(session, 4).ok());
  faults_->WaitUntilHung(1);
  ASSERT_TRUE(Save(session, 5, "model", "five").ok());
  EXPECT_EQ(*Load(session, 4, "model"), "four");
  EXPECT_EQ(*Load(session, 5, "model"), "five");
  faults_->Clear();
  EXPECT_TRUE(WaitFor(session, 4, engine::Level::kPersisted).ok());
}

TEST_F(NodeOverFaultyStorage, AJobWhoseScanHangsLeavesTheOthersTheirs) {  // promise 4
  StartNode();
  const SessionId session = Begin();
  ASSERT_TRUE(Save(session, 4, "model", "four").ok());
  ASSERT_TRUE(PersistNow(session, 4).ok());
  ASSERT_TRUE(WaitFor(session, 4, engine::Level::kPersisted).ok());
  StopNode();
  journal_ = *journal::Journal::MakeFile(options_.journal);
  keeper_.Forget();
  StartNode();
  faults_->Add({.kind = FaultKind::kHang, .call = storage::StorageCall::kRead, .times = 1});
  const SessionId reader = Begin("", 0);
  std::thread stuck([&] { (void)Load(reader, 1, "model", "hangs"); });
  faults_->WaitUntilHung(1);
  const auto loaded = Load(reader, 4, "model");
  EXPECT_TRUE(loaded.ok()) << loaded.status();
  faults_->Clear();
  stuck.join();
}

TEST_F(NodeTest, TheCatalogCatchesUpWithWhatExists) {
  with_catalog_ = true;
  StartNode();
  const SessionId session = Begin();
  ASSERT_TRUE(Save(session, 4, "model", "bytes").ok());
  StopNode();  // flushes
  auto catalog = OpenCatalog();
  auto steps = catalog->Steps("job", std::numeric_limits<Step>::max(), 10);
  ASSERT_TRUE(steps.ok()) << steps.status();
  ASSERT_EQ(steps->size(), 1u);
  EXPECT_EQ((*steps)[0].checkpoint.step, 4);
}

// --- which life of its rank the node is

class NodeOfARing : public NodeTest {
 protected:
  NodeOfARing() {
    with_storage_ = false;
    engine::RingOptions& ring = options_.engine.ring;
    ring.cluster = "test";
    ring.rank = 0;
    ring.members = {{0, "127.0.0.1:1"}, {1, "127.0.0.1:2"}};
    ring.replicas = 0;
  }
  // The other member has met a life of this node's rank that is so much newer.
  void MetAnother(int64_t newer_by) {
    node().Met(1,
               {0, node().Self().incarnation + newer_by, std::string(engine::kInstanceBytes, 'x')});
  }
  std::string State(SessionId session) {
    const auto state = node().State(CallerOf(session));
    EXPECT_TRUE(state.ok()) << state.status();
    return state.ok() ? state->state : "";
  }
};

TEST_F(NodeOfARing, ThatIsSupersededSaysSoAndIsLoadedFrom) {
  StartNode();
  node().Exchanged(1, engine::MemberId{1, 7, std::string(engine::kInstanceBytes, 'o')}, 0);
  const SessionId session = Begin();
  ASSERT_TRUE(Save(session, 1, "model", "bytes").ok());
  EXPECT_EQ(State(session), "serving");
  MetAnother(1);
  EXPECT_EQ(Save(session, 2, "model", "bytes").code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(State(session), HasSubstr("superseded: incarnation "));
  EXPECT_EQ(*Load(session, 1, "model"), "bytes");
  Restart();
  EXPECT_THAT(State(0), HasSubstr("superseded: incarnation "));
}

TEST_F(NodeOfARing, TakesAGreaterIncarnationWhichItsCatalogsRowsHave) {
  with_catalog_ = true;
  StartNode();
  MetAnother(1'000'000'000);
  const int64_t ours = node().Self().incarnation;
  ASSERT_TRUE(Save(Begin(), 1, "model", "bytes").ok());
  node().FlushCatalog(10'000);
  const int64_t newest = *OpenCatalog()->NewestSequence();
  EXPECT_EQ(newest >> 20, ours);
  Restart();
  EXPECT_EQ(node().Self().incarnation, ours);
  ASSERT_TRUE(Save(Begin("job", 8), 2, "model", "bytes", "job", 8).ok());
  node().FlushCatalog(10'000);
  EXPECT_GT(*OpenCatalog()->NewestSequence(), newest);
}

// A new member of a ring knows nothing of a job before it has heard of it, and some of these have it as their home.
TEST_F(NodeOfARing, WhatItDoesNotKnowYetIsNotGone) {
  with_catalog_ = true;
  constexpr int kJobs = 8;
  for (int i = 0; i < kJobs; ++i) {
    const std::string job = absl::StrCat("job", i);
    const catalog::StepRow step{.checkpoint = {job, 5, 7, 0}, .of_home = true, .sequence = 1};
    ASSERT_TRUE(OpenCatalog()->Apply({catalog::JobRow{.job = job}, step}).ok());
  }
  StartNode();
  for (int i = 0; i < kJobs; ++i) Begin(absl::StrCat("job", i));
  node().FlushCatalog(10'000);
  StopNode();
  for (int i = 0; i < kJobs; ++i) {
    EXPECT_EQ(OpenCatalog()->Steps(absl::StrCat("job", i), 100, 10)->size(), 1u) << i;
  }
}

// As after a daemon that died before the catalog knew that it had removed its checkpoints.
TEST_F(NodeTest, WhatTheCatalogShowsAndIsGoneIsMarkedInTheNextLife) {
  with_catalog_ = true;
  with_storage_ = false;
  catalog::StepRow step;
  step.checkpoint = {"forgotten", 5, 7, 0};
  step.sequence = 1;
  ASSERT_TRUE(OpenCatalog()->Apply({catalog::JobRow{.job = "forgotten"}, step}).ok());
  StartNode();
  node().FlushCatalog(10'000);
  EXPECT_TRUE(OpenCatalog()->Steps("forgotten", 100, 10)->empty());
}

TEST_F(NodeTest, TheCatalogShowsNothingThatWasEvicted) {  // promise 8
  with_catalog_ = true;
  with_storage_ = false;
  StartNode();
  const SessionId session = Begin();
  const std::string bytes(4 << 20, 'e');
  constexpr Step kSteps = 40;  // more than fit
  for (Step step = 1; step <= kSteps; ++step) {
    ASSERT_TRUE(Save(session, step, "model", bytes).ok()) << step;
  }
  node().FlushCatalog(10'000);
  const auto rows = OpenCatalog()->Steps("job", 1'000, 1'000);
  ASSERT_TRUE(rows.ok()) << rows.status();
  EXPECT_GT(rows->size(), 4u);
  EXPECT_LT(rows->size(), static_cast<size_t>(kSteps));
  for (const catalog::StepRow& row : *rows) {
    EXPECT_TRUE(Load(session, row.checkpoint.step, "model").ok()) << row.checkpoint.step;
  }
}

TEST_F(NodeTest, AfterALongOutageTheCatalogShowsWhatThereIs) {  // promise 8
  with_catalog_ = true;
  with_storage_ = false;
  options_.recorder = {.max_rows = 10, .retry_min_ms = 1, .retry_max_ms = 10};
  StartNode();
  const SessionId session = Begin();
  ASSERT_TRUE(Save(session, 1, "model", "one").ok());
  const auto shown = [&]() -> std::vector<Step> {
    std::vector<Step> steps;
    const auto rows = OpenCatalog()->Steps("job", 1'000, 1'000);
    EXPECT_TRUE(rows.ok()) << rows.status();
    for (const catalog::StepRow& row : *rows) steps.push_back(row.checkpoint.step);
    return steps;
  };
  SessionId reader = session;
  const auto remove = [&](Step step) {
    event::Remove gone;
    gone.caller = CallerOf(reader);
    gone.ref = {"job", step};
    gone.force = true;
    gone.deadline = Soon();
    return node().Call(std::move(gone)).body.status();
  };
  while (shown() != std::vector<Step>{1}) std::this_thread::yield();
  StopNode();
  // The folder moves as a whole, in one step each way: the daemon asks for the file all the time,
  // and would make an empty one in any moment in which its name is free.
  const std::string folder = std::filesystem::path(CatalogPath()).parent_path();
  std::filesystem::rename(folder, folder + ".aside");
  StartNode();
  const SessionId again = reader = Begin("job", 8);
  for (Step step = 2; step <= 60; ++step) {
    ASSERT_TRUE(Save(again, step, "model", "bytes", "job", 8).ok());
    if (step % 2 == 0) {
      const Status removed = remove(step);
      ASSERT_TRUE(removed.ok()) << removed;
    }
  }
  ASSERT_TRUE(remove(1).ok());
  std::filesystem::rename(folder + ".aside", folder);
  std::vector<Step> live;
  for (Step step = 59; step > 1; step -= 2) live.push_back(step);
  while (shown() != live) std::this_thread::yield();
}

TEST_F(NodeTest, SafeModeServesAndAdmitsNothing) {
  StartNode();
  const std::string bytes(1000, 'b');
  ASSERT_TRUE(Save(Begin(), 1, "model", bytes).ok());
  safe_mode_ = "three deaths within a minute";
  Restart();
  const SessionId session = Begin("job", 8);
  EXPECT_EQ(*Load(session, 1, "model"), bytes);
  const Status refused = Save(session, 2, "model", bytes, "job", 8);
  EXPECT_EQ(refused.code(), absl::StatusCode::kUnavailable);
  EXPECT_NE(std::string(refused.message()).find("three deaths"), std::string::npos);
}

TEST_F(NodeTest, DrainPersistsTheNewestAndThenAdmitsNothing) {
  options_.engine.default_policy.mode = PersistMode::kNewest;
  StartNode();
  const SessionId session = Begin();
  const std::string bytes(200'000, 'd');
  for (Step step = 1; step <= 3; ++step) ASSERT_TRUE(Save(session, step, "model", bytes).ok());
  EXPECT_TRUE(node().Drain(Soon()));
  EXPECT_EQ(*ReadFile(Path("storage/job/3/model")), bytes);
  EXPECT_FALSE(Save(session, 4, "model", bytes).ok());
}

TEST_F(NodeTest, ABitFlippedAfterSealingIsFoundNotReturned) {  // promise 2, R11
  StartNode();
  const SessionId session = Begin();
  const std::string bytes(2 << 20, 'c');
  ASSERT_TRUE(Save(session, 1, "model", bytes).ok());
  for (SlabId slab : keeper_.SlabsOf(2 << 20)) {
    const Status written = cache().Write(slab, 12'345, "X");
    ASSERT_TRUE(written.ok() || absl::IsNotFound(written)) << written;  // the next save's, not made
  }
  event::Open open;
  open.caller = CallerOf(session);
  open.ref = {"job", 1};
  open.name = "model";
  open.verify = true;
  open.mode = engine::OpenMode::kRead;
  open.deadline = Soon();
  node::OpenAnswer answer = node().Open(std::move(open));
  EXPECT_EQ(answer.opened.status().code(), absl::StatusCode::kDataLoss) << answer.opened.status();
}

TEST_F(NodeTest, FillingTheBudgetNeverExceedsItAndNeverSticks) {  // promise 8, R30
  StartNode();
  const SessionId session = Begin();
  for (Step step = 1; step <= 40; ++step) {
    const Status saved = Save(session, step, "model", std::string(5 << 20, 'x'));
    ASSERT_TRUE(saved.ok()) << step << ": " << saved;
  }
  auto state = node().State(CallerOf(session));
  ASSERT_TRUE(state.ok());
  EXPECT_LE(state->engine.slab_bytes, options_.engine.budget_bytes);
}

TEST_F(NodeTest, TheJournalSwitchesHalvesAndLosesNothing) {
  options_.journal.bytes = 1 << 20;
  options_.check_invariants = false;  // too slow for that many
  journal_ = *journal::Journal::MakeFile(options_.journal);
  StartNode();
  const SessionId session = Begin();
  for (Step step = 1; step <= 1000; ++step) {
    const Status saved = Save(session, step, "model", "x");
    ASSERT_TRUE(saved.ok()) << step << ": " << saved;
  }
  Restart();
  const SessionId reader = Begin("job", 8);
  EXPECT_EQ(*Load(reader, 1, "model"), "x");
  EXPECT_EQ(*Load(reader, 1000, "model"), "x");
}

TEST_F(NodeTest, AFullJournalCostsTheOldestStepsAndSavingGoesOn) {  // promise 4
  options_.journal.bytes = 1 << 20;
  options_.check_invariants = false;
  journal_ = *journal::Journal::MakeFile(options_.journal);
  StartNode();
  const SessionId session = Begin();
  int refused = 0;
  for (Step step = 1; step <= 4000; ++step) {
    const Status saved = Save(session, step, "model", "x");
    // At most one save per batch is refused, and the next one finds space.
    if (!saved.ok()) {
      ASSERT_EQ(saved.code(), absl::StatusCode::kResourceExhausted) << step << ": " << saved;
      ++refused;
    }
  }
  EXPECT_LT(refused, 100);
  Restart();
  EXPECT_TRUE(Load(Begin("job", 8), 4000, "model").ok());
}

// A state of more facts than one piece of a snapshot has.
TEST_F(NodeTest, ASnapshotInPiecesLosesNothingThatIsSavedMeanwhile) {  // promise 7
  with_storage_ = false;  // what memory lost is found nowhere else
  options_.journal.bytes = 1 << 20;
  options_.check_invariants = false;
  journal_ = *journal::Journal::MakeFile(options_.journal);
  StartNode();
  constexpr Step kSteps = 800, kOfALife = 40;
  int snapshots = 0;
  int64_t used = 0;
  const auto count = [&](SessionId session) {
    const int64_t before = std::exchange(used, Counter(session, "journal_used_bytes"));
    snapshots += used < before ? 1 : 0;
  };
  for (Step saved = 0; saved < kSteps; saved += kOfALife) {
    const Attempt attempt = 7 + saved;
    const SessionId session = Begin("job", attempt);
    for (Step step = 1; step <= saved; ++step) {
      const auto loaded = Load(session, step, "model");
      ASSERT_TRUE(loaded.ok()) << step << " of " << saved << ": " << loaded.status();
      ASSERT_EQ(*loaded, absl::StrCat(step));
      count(session);
    }
    for (Step step = saved + 1; step <= saved + kOfALife; ++step) {
      ASSERT_TRUE(Save(session, step, "model", absl::StrCat(step), "job", attempt).ok()) << step;
      count(session);
    }
    Restart();
  }
  EXPECT_GT(snapshots, 2);
}

// What was said, and has ended, while the pieces were written is no state: a snapshot without it makes
// room before a step is given up.
TEST_F(NodeTest, WhatASnapshotInPiecesHasBesideThemCostsNoStep) {  // promise 4
  with_storage_ = false;
  options_.journal.bytes = 1 << 20;
  options_.check_invariants = false;
  for (int pieces = 2; pieces < 8; ++pieces) {  // before many facts come at once
    StopNode();
    keeper_.Forget();
    journal_ = *journal::Journal::MakeFile(options_.journal);
    StartNode();
    const SessionId session = Begin();
    for (Step step = 1; step <= 40; ++step) ASSERT_TRUE(Save(session, step, "model", "x").ok());
    engine::event::Create create;
    create.caller = CallerOf(session);
    create.part = PartKey{CheckpointKey{"job", 41, 7, 0}, 0};
    create.world_size = 1;
    engine::event::SealObjects seal;
    seal.caller = create.caller;
    seal.part = create.part;
    while (Counter(session, "journal_used_bytes") < 261'000) {  // half of a half
      create.call = ++calls_;
      create.deadline = Soon();
      create.objects.clear();
      for (int i = 0; i < 4; ++i) {
        const std::string name = absl::StrCat(seal.seals.size(), std::string(200, 'n'));
        create.objects.push_back({name, 1, ObjectKind::kRaw, false});
        seal.seals.push_back({name, 1, BlockCrcs("x", 1, kBlockBytes), {{0, 1}}});
      }
      const node::Answer created = node().Call(engine::event::Create(create));
      ASSERT_TRUE(created.body.ok()) << created.body.status();
    }
    SessionId other = 0;
    for (int i = 0; i < pieces; ++i) other = Begin("other", i + 1);
    seal.call = ++calls_;
    seal.seals.resize(seal.seals.size() * 95 / 100);
    const node::Answer sealed = node().Call(std::move(seal));
    ASSERT_TRUE(sealed.body.ok()) << sealed.body.status();
    EXPECT_TRUE(Save(other, 1, "model", "x", "other", pieces).ok()) << pieces;
    const auto first = Load(session, 1, "model");
    EXPECT_TRUE(first.ok()) << pieces << ": " << first.status();
  }
}

// --- calls with a callback

// The answers that callbacks were given, and on which thread.
class Answers {
 public:
  node::AnswerCallback Take() {
    return [this](node::Answer answer) {
      MutexLock lock(&mu_);
      threads_.push_back(std::this_thread::get_id());
      answers_.push_back(std::move(answer));
    };
  }
  size_t size() const {
    MutexLock lock(&mu_);
    return answers_.size();
  }
  node::Answer at(size_t i) const {
    MutexLock lock(&mu_);
    return answers_.at(i);
  }
  std::thread::id thread(size_t i) const {
    MutexLock lock(&mu_);
    return threads_.at(i);
  }

 private:
  mutable Mutex mu_;
  std::vector<node::Answer> answers_ ABSL_GUARDED_BY(mu_);
  std::vector<std::thread::id> threads_ ABSL_GUARDED_BY(mu_);
};

TEST_F(NodeTest, ACallbackWithAnAnswerAtOnceRunsOnItsCallersThread) {
  StartNode();
  const SessionId session = Begin();
  ASSERT_TRUE(Save(session, 1, "model", "bytes").ok());
  event::Latest latest;
  latest.caller = CallerOf(session);
  latest.job = "job";
  latest.deadline = Soon();
  Answers answers;
  node().Call(std::move(latest), answers.Take());
  while (answers.size() == 0) std::this_thread::yield();  // storage may have to be read first
  ASSERT_TRUE(answers.at(0).body.ok()) << answers.at(0).body.status();
  EXPECT_EQ(std::get<reply::Latest>(*answers.at(0).body).key.step, 1);

  Answers status;
  node().Call(event::Status{CallerOf(session)}, status.Take());
  ASSERT_EQ(status.size(), 1u);
  EXPECT_EQ(status.thread(0), std::this_thread::get_id());
}

TEST_F(NodeTest, AParkedCallHoldsNoThreadAndItsCallbackHoldsNoLock) {
  StartNode();
  const SessionId session = Begin();
  constexpr int kCalls = 50;
  Answers answers;
  std::atomic<int> seen_inside{0};
  for (int i = 0; i < kCalls; ++i) {
    event::Wait wait;
    wait.caller = CallerOf(session);
    wait.ref = {"job", 1};
    wait.level = engine::Level::kCached;
    wait.deadline = Soon();
    node().Call(std::move(wait), [&, take = answers.Take()](node::Answer answer) {
      // Would deadlock if the node called with its lock held.
      if (node().CheckInvariants().empty()) ++seen_inside;
      take(std::move(answer));
    });
  }
  EXPECT_EQ(answers.size(), 0u);
  ASSERT_TRUE(Save(session, 1, "model", "bytes").ok());
  while (answers.size() < kCalls) std::this_thread::yield();
  EXPECT_EQ(seen_inside, kCalls);
  for (int i = 0; i < kCalls; ++i) {
    ASSERT_TRUE(answers.at(i).body.ok()) << answers.at(i).body.status();
    EXPECT_EQ(std::get<engine::CheckpointInfo>(*answers.at(i).body).key.step, 1);
  }
}

TEST_F(NodeTest, StoppingAnswersEveryOutstandingCallOnce) {
  StartNode();
  const SessionId session = Begin();
  Answers answers;
  const auto wait_for_step_1 = [&] {
    event::Wait wait;
    wait.caller = CallerOf(session);
    wait.ref = {"job", 1};
    wait.deadline = Soon();
    node().Call(std::move(wait), answers.Take());
  };
  wait_for_step_1();
  wait_for_step_1();
  EXPECT_EQ(answers.size(), 0u);
  node().Stop();
  wait_for_step_1();
  ASSERT_EQ(answers.size(), 3u);
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(answers.at(i).body.status().code(), absl::StatusCode::kUnavailable);
  }
}

}  // namespace
}  // namespace cairn::testing
