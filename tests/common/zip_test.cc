#include "common/zip.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <random>

#include "common/checksum.h"
#include "common/fd.h"

namespace cairn {
namespace {

using ::testing::HasSubstr;

struct Content {
  std::string name;
  std::string bytes;
};

// The archive that the plan describes, `gap` bytes longer than the least.
std::string Archive(const std::vector<Content>& contents, uint64_t gap) {
  std::vector<ZipRecord> records;
  for (const Content& content : contents) records.push_back({content.name, content.bytes.size()});
  auto plan = ZipPlan::Make(records);
  EXPECT_TRUE(plan.ok()) << plan.status();
  const uint64_t length = plan->MinimumLength() + gap;
  std::string archive(length, '?');
  std::vector<uint32_t> crcs;
  for (size_t i = 0; i < contents.size(); ++i) {
    const std::string& bytes = contents[i].bytes;
    const ZipPlacement& placement = plan->placements()[i];
    crcs.push_back(ZipCrc32(0, bytes.data(), bytes.size()));
    const std::string header = plan->LocalHeader(i, crcs.back());
    EXPECT_EQ(header.size(), placement.data_offset - placement.header_offset);
    archive.replace(placement.header_offset, header.size(), header);
    archive.replace(placement.data_offset, bytes.size(), bytes);
  }
  const auto tail = plan->Tail(crcs, length);
  EXPECT_TRUE(tail.ok()) << tail.status();
  EXPECT_EQ(plan->TailOffset() + tail->size(), length);
  archive.replace(plan->TailOffset(), tail->size(), *tail);
  return archive;
}

std::vector<Content> Sample() {
  std::vector<Content> contents = {{"archive/data.pkl", "pickle"}, {"archive/version", "3\n"}};
  for (size_t n : {0, 1, 63, 64, 65, 100000}) {
    contents.push_back({"archive/data/" + std::to_string(n), std::string(n, 'd')});
  }
  // Every remainder of the padding, 1 to 3 bytes included, which an extra field can't have.
  for (size_t n = 0; n < 70; ++n) {
    contents.push_back({"archive/n/" + std::string(n + 1, 'n'), std::to_string(n)});
  }
  return contents;
}

class Python : public ::testing::Test {
 protected:
  Python() {
    char path[] = "/tmp/cairn-zip-XXXXXX";
    directory_ = ::mkdtemp(path);
  }
  ~Python() override { std::filesystem::remove_all(directory_); }

  std::string Path(const std::string& name) const { return directory_ + "/" + name; }
  void Write(const std::string& name, const std::string& bytes) {
    std::ofstream(Path(name), std::ios::binary) << bytes;
  }
  // True when `script` ran through; it runs inside the scratch directory.
  bool Run(const std::string& script, const std::string& python = "/usr/bin/python3") {
    Write("script.py", script);
    return std::system(("cd " + directory_ + " && " + python + " script.py").c_str()) == 0;
  }

  std::string directory_;
};

TEST(ZipPlans, AlignEveryRecord) {
  const auto archive = Archive(Sample(), 0);
  auto entries = ReadZipDirectory(archive);
  ASSERT_TRUE(entries.ok()) << entries.status();
  const auto contents = Sample();
  ASSERT_EQ(entries->size(), contents.size());
  for (size_t i = 0; i < contents.size(); ++i) {
    EXPECT_EQ((*entries)[i].name, contents[i].name);
    EXPECT_EQ((*entries)[i].offset % kZipAlignment, 0u);
    EXPECT_EQ(archive.substr((*entries)[i].offset, (*entries)[i].length), contents[i].bytes);
    EXPECT_EQ((*entries)[i].crc, ZipCrc32(0, contents[i].bytes.data(), contents[i].bytes.size()));
  }
}

TEST(ZipPlans, OfNothingAreAnEmptyArchive) {
  EXPECT_TRUE(ReadZipDirectory(Archive({}, 0))->empty());
}

TEST(ZipPlans, RefuseAGapBeyondWhatReadersAccept) {
  auto plan = ZipPlan::Make({{"a", 1}});
  ASSERT_TRUE(plan.ok());
  const uint64_t least = plan->MinimumLength();
  EXPECT_TRUE(plan->Tail({1}, least + kZipMaxGap).ok());
  EXPECT_EQ(plan->Tail({1}, least + kZipMaxGap + 1).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(plan->Tail({1}, least - 1).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(plan->Tail({}, least).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_FALSE(ZipPlan::Make({{"", 1}}).ok());
  EXPECT_FALSE(ZipPlan::Make({{std::string(70000, 'x'), 1}}).ok());
}

TEST_F(Python, ZipfileOpensWhatWeWriteAndChecksItsChecksums) {
  for (uint64_t gap : {uint64_t{0}, uint64_t{1}, uint64_t{100000}, kZipMaxGap}) {
    Write("a.zip", Archive(Sample(), gap));
    EXPECT_TRUE(Run(R"(
import zipfile
z = zipfile.ZipFile("a.zip")
assert z.testzip() is None
assert len(z.namelist()) == 78, len(z.namelist())
assert z.read("archive/data/100000") == b"d" * 100000
assert z.read("archive/data.pkl") == b"pickle"
)")) << gap;
  }
}

// Records and offsets beyond 4 GiB, in a sparse file.
TEST_F(Python, ZipfileOpensZip64Archives) {
  const uint64_t big = (uint64_t{4} << 30) + 5;
  auto plan = ZipPlan::Make({{"small", 3}, {"big", big}, {"after", 3}, {"exact", 0xFFFFFFFF}});
  ASSERT_TRUE(plan.ok());
  const uint32_t crc = ZipCrc32(0, "abc", 3);
  const std::vector<uint32_t> crcs = {crc, 0, crc, 0};
  const uint64_t length = plan->MinimumLength() + 4096;
  UniqueFd fd(::open(Path("big.zip").c_str(), O_CREAT | O_RDWR | O_CLOEXEC, 0600));
  for (size_t i = 0; i < 4; ++i) {
    const std::string header = plan->LocalHeader(i, crcs[i]);
    EXPECT_EQ(plan->placements()[i].data_offset % kZipAlignment, 0u);
    ASSERT_TRUE(
        PwriteAll(fd.get(), header.data(), header.size(), plan->placements()[i].header_offset)
            .ok());
  }
  for (size_t i : {0, 2}) {
    ASSERT_TRUE(PwriteAll(fd.get(), "abc", 3, plan->placements()[i].data_offset).ok());
  }
  const auto tail = plan->Tail(crcs, length);
  ASSERT_TRUE(tail.ok());
  ASSERT_TRUE(PwriteAll(fd.get(), tail->data(), tail->size(), plan->TailOffset()).ok());
  EXPECT_TRUE(Run(R"(
import zipfile
z = zipfile.ZipFile("big.zip")
assert z.read("small") == b"abc" and z.read("after") == b"abc"
assert z.getinfo("big").file_size == (4 << 30) + 5
assert z.getinfo("exact").file_size == 0xFFFFFFFF
assert z.getinfo("after").header_offset > 4 << 30
with z.open("big") as f: assert f.read(10) == bytes(10)
)"));
  auto mapping = Mapping::Map(fd.get(), 0, length, PROT_READ, MAP_SHARED);
  ASSERT_TRUE(mapping.ok());
  const auto entries = ReadZipDirectory(absl::string_view(mapping->data(), length));
  ASSERT_TRUE(entries.ok()) << entries.status();
  EXPECT_EQ((*entries)[1].length, big);
  EXPECT_EQ((*entries)[2].offset, plan->placements()[2].data_offset);
  EXPECT_EQ((*entries)[3].length, 0xFFFFFFFFu);
}

// What torch.save wrote, taken apart and laid out again by us with a gap, loads as the same
// tensors: promise 9.
TEST_F(Python, TorchLoadsItsOwnRecordsFromOurArchive) {
  if (!Run("import torch")) GTEST_SKIP() << "Debian's python3-torch is not installed";
  ASSERT_TRUE(Run(R"(
import torch
torch.manual_seed(1)
state = {"w": torch.randn(300, 70), "b": torch.arange(5, dtype=torch.int64), "e": torch.empty(0)}
state["tied"] = state["w"]
torch.save(state, "stock.pt")
)"));
  const auto stock = ReadFile(Path("stock.pt"));
  ASSERT_TRUE(stock.ok());
  const auto entries = ReadZipDirectory(*stock);
  ASSERT_TRUE(entries.ok()) << entries.status();
  std::vector<Content> contents;
  for (const ZipEntry& entry : *entries) {
    contents.push_back({entry.name, stock->substr(entry.offset, entry.length)});
  }
  for (uint64_t gap : {uint64_t{0}, uint64_t{12345}, kZipMaxGap}) {
    Write("ours.pt", Archive(contents, gap));
    EXPECT_TRUE(Run(R"(
import inspect, torch
a = torch.load("stock.pt")
def same(b):
    assert a.keys() == b.keys()
    assert all(torch.equal(a[k], b[k]) and a[k].dtype == b[k].dtype for k in a)
    assert b["tied"].data_ptr() == b["w"].data_ptr()
same(torch.load("ours.pt"))
if "weights_only" in inspect.signature(torch.load).parameters:
    same(torch.load("ours.pt", weights_only=True))
if "mmap" in inspect.signature(torch.load).parameters:
    same(torch.load("ours.pt", weights_only=True, mmap=True))
)")) << gap;
  }
}

TEST(ZipDirectories, OfDamagedArchivesAreRefusedOrInBounds) {
  const std::string archive = Archive(Sample(), 10);
  EXPECT_EQ(ReadZipDirectory("").status().code(), absl::StatusCode::kDataLoss);
  for (size_t n = 0; n < 200; ++n) {
    EXPECT_FALSE(
        ReadZipDirectory(absl::string_view(archive).substr(0, archive.size() - 1 - n)).ok());
  }
  std::mt19937 random(3);
  const size_t tail = archive.size() - 8000;
  for (int i = 0; i < 20000; ++i) {
    std::string damaged = archive;
    for (int flips = 0; flips < 2; ++flips) {
      damaged[tail + random() % 8000] = static_cast<char>(random());
    }
    const auto entries = ReadZipDirectory(damaged);
    if (!entries.ok()) continue;
    for (const ZipEntry& entry : *entries) {
      ASSERT_LE(entry.offset, damaged.size());
      ASSERT_LE(entry.length, damaged.size() - entry.offset);
    }
  }
}

// A reader that has the ends of an archive finds what one that has all of it does, or says that they are too short.
TEST(ZipDirectories, OfTheEndsSayTheSameOrThatTheyAreTooShort) {
  const std::string archive = Archive({{"a/data.pkl", std::string(300, 'p')},
                                       {"a/data/0", std::string(9000, 'd')},
                                       {"a/version", "3\n"}},
                                      64);
  const auto whole = ReadZipDirectory(archive);
  ASSERT_TRUE(whole.ok()) << whole.status();
  size_t told = 0;
  for (uint64_t head = 0; head < 600; head += 7) {
    for (uint64_t tail = 0; tail < 900; tail += 11) {
      const absl::string_view all = archive;
      const auto ends =
          ReadZipDirectory(ZipEnds{all.substr(0, head), all.substr(all.size() - tail), all.size()});
      if (!ends.ok()) {
        ASSERT_EQ(ends.status().code(), absl::StatusCode::kOutOfRange) << ends.status();
        continue;
      }
      ++told;
      ASSERT_EQ(ends->size(), whole->size());
      for (size_t i = 0; i < whole->size(); ++i) {
        ASSERT_EQ((*ends)[i].name, (*whole)[i].name);
        ASSERT_EQ((*ends)[i].offset, (*whole)[i].offset);
        ASSERT_EQ((*ends)[i].length, (*whole)[i].length);
      }
    }
  }
  EXPECT_GT(told, 0u);
}

TEST(ZipDirectories, OfCompressedArchivesAreRefused) {
  std::string archive = Archive({{"a", "abc"}}, 0);
  const size_t central = archive.rfind("PK\x01\x02");
  archive[central + 10] = 8;  // deflate
  const auto entries = ReadZipDirectory(archive);
  EXPECT_EQ(entries.status().code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(entries.status().message()), HasSubstr("stored"));
}

}  // namespace
}  // namespace cairn
