// catalog_bench ROW [PAIRS]: one row of the catalog in a database, against the bare statements on the same server. Prints
// one pair per line, ours and the reference; tests/bench/catalog_bench.py makes a row of them.
//
// The server is a MariaDB of its own whose commits are durable: each waits for the disk.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "server/catalog/mysql_catalog.h"
#include "server/catalog/mysql_session.h"
#include "server/catalog/ring_table.h"
#include "tests/bench/tiny.h"
#include "tests/support/mariadb.h"
#include "tests/support/measure.h"

namespace cairn::catalog {
namespace {

using testing::Median;
using testing::Must;

using bench::Sized;

const int kWriters = Sized(4096, 100), kBatch = Sized(1000, 20), kCommits = Sized(100, 4);
const int kSteps = Sized(10'000, 60), kAsked = Sized(200, 4);

template <typename What>
double Ms(const What& what) {
  return testing::Seconds(what) * 1e3;
}

class Bench {
 public:
  Bench() {
    server_.Kill();
    server_.Start({"--innodb-flush-log-at-trx-commit=1", "--innodb-doublewrite=1",
                   "--innodb-buffer-pool-size=256M"});
    MysqlOptions options = server_.MakeDatabase();
    options.author = {.name = "0", .alone = false};
    // As a member of a ring by the catalog, whose rank each transaction looks at.
    options.seat = {.rank = 0, .instance = std::string(16, 's')};
    Must(OpenMysqlCatalog(options));  // makes the tables
    const auto ring = Must(OpenMysqlRing(options));
    Must(ring->Make(1, 1).why);
    Must(ring->Claim({0, 1, options.seat.instance}, "10.0.0.1:7400", 0, 0).why);
    catalog_ = Must(OpenMysqlCatalog(options));
    bare_ = Must(MysqlSession::Connect(options));
    // A table like the catalog's, with the same indexes, and nobody's rules.
    Must(bare_->Execute("CREATE TABLE bare LIKE parts"));
  }

  // Milliseconds of one writer's part, committed; of a bare upsert that commits by itself.
  void Commit(int pairs) {
    Must(catalog_->Apply({PartOf(0, 1)}));
    BareUpsert({PartOf(0, 1)});
    for (int pair = 0; pair < pairs; ++pair) {
      std::vector<double> ours, theirs;
      for (int i = 0; i < kCommits; ++i) {  // each changes its row
        const int64_t sequence = pair * kCommits + i + 2;
        ours.push_back(Ms([&] { Must(catalog_->Apply({PartOf(0, sequence)})); }));
        theirs.push_back(Ms([&] { BareUpsert({PartOf(0, sequence)}); }));
      }
      Print(Median(ours), Median(theirs));
    }
  }

  // Rows a second, a thousand at once and one by one.
  void Batch(int pairs) {
    for (int pair = 0; pair < pairs; ++pair) {
      std::vector<Row> rows;
      for (int writer = 0; writer < kBatch; ++writer) rows.push_back(PartOf(writer, 2 * pair + 1));
      const double at_once = Ms([&] { Must(catalog_->Apply(rows)); });
      const double single = Ms([&] {
        for (int writer = 0; writer < kCommits; ++writer) {
          Must(catalog_->Apply({PartOf(writer, 2 * pair + 2)}));
        }
      });
      Print(kBatch / at_once * 1e3, kCommits / single * 1e3);
    }
  }

  // Milliseconds of a step of 4,096 parts; of the same rows in a bare multi-row insert.
  void Scale(int pairs) {
    for (int pair = 0; pair < pairs; ++pair) {
      step_ = pair + 1;
      std::vector<Row> rows;
      for (int writer = 0; writer < kWriters; ++writer) rows.push_back(PartOf(writer, 1));
      const std::vector<Row> parts = rows;
      rows.push_back(StepRow{.checkpoint = Key(), .world_size = kWriters, .of_home = true});
      Print(Ms([&] { Must(catalog_->Apply(rows)); }), Ms([&] { BareInsert(parts); }));
    }
  }

  // Milliseconds to the step that `latest` names, of 10,000 in lives that each went back; of a select by the primary key.
  void Latest(int pairs) {
    for (step_ = 0; step_ < kSteps;) {
      std::vector<Row> rows;
      for (int i = 0; i < kBatch; ++i, ++step_) {
        // Each life begins where half of the one before it was done.
        const Attempt life = 7 + step_ / kBatch;
        rows.push_back(StepRow{.checkpoint = Lived(step_), .of_home = true, .sequence = step_ + 1});
        if (i > 0) continue;
        rows.push_back(LineRow{
            .record = {"run", life, LineRecordKind::kResume, {{{life - 1, Lived(step_).step - 1}}}},
            .sequence = step_ + 1});
      }
      Must(catalog_->Apply(rows));
    }
    const CheckpointKey expected = Lived(kSteps - 1);
    for (int pair = 0; pair < pairs; ++pair) {
      std::vector<double> ours, theirs;
      for (int i = 0; i < kAsked; ++i) {
        ours.push_back(Ms([&] {
          const auto latest = Must(catalog_->Latest("run"));
          if (!latest.has_value() || latest->checkpoint != expected) std::exit(1);
        }));
        const CheckpointKey key = Lived(i * 37 % kSteps);
        theirs.push_back(Ms([&] {
          int64_t found = 0;
          Must(
              bare_->Query("SELECT digest, sequence FROM steps WHERE cluster=? AND job=? AND "
                           "step=? AND attempt=? AND revision=?",
                           {cluster_, key.job, key.step, key.attempt, int64_t{key.revision}},
                           [&](const MysqlColumns& row) { found = row.Int(1); }));
          if (found == 0) std::exit(1);
        }));
      }
      Print(Median(ours), Median(theirs));
    }
  }

 private:
  CheckpointKey Key() const { return {"run", step_, 7, 0}; }
  // The n-th of all steps that were ever saved: each life went back by half of the one before it.
  static CheckpointKey Lived(int64_t n) {
    return {"run", n / kBatch * (kBatch / 2) + n % kBatch, 7 + n / kBatch, 0};
  }
  PartRow PartOf(Writer writer, int64_t sequence) const {
    return {.part = {Key(), writer},
            .world_size = kWriters,
            .digest = std::string(32, 'd'),
            .bytes = static_cast<uint64_t>(sequence),
            .objects = 9,
            .owner = std::to_string(writer % 512),
            .sequence = sequence};
  }

  Values ValuesOf(const PartRow& part) const {
    Values values = TableRowOf(part).values;
    values.insert(values.begin(), cluster_);
    return values;
  }
  std::string Into(size_t rows) const {
    const size_t columns = TableAt(kParts).columns.size() + 1;
    const std::string marks =
        absl::StrCat("(", absl::StrJoin(std::vector<const char*>(columns, "?"), ","), ")");
    return absl::StrCat("INSERT INTO bare VALUES ",
                        absl::StrJoin(std::vector<std::string>(rows, marks), ","));
  }
  void BareUpsert(const PartRow& part) {
    Must(bare_->Run(absl::StrCat(Into(1),
                                 " ON DUPLICATE KEY UPDATE bytes=VALUES(bytes), "
                                 "sequence=VALUES(sequence)"),
                    ValuesOf(part)));
  }
  void BareInsert(const std::vector<Row>& rows) {
    constexpr size_t kAtOnce = 256;
    Must(bare_->Execute("START TRANSACTION"));
    for (size_t at = 0; at < rows.size(); at += kAtOnce) {
      const size_t count = std::min(kAtOnce, rows.size() - at);
      Values values;
      for (size_t i = 0; i < count; ++i) {
        for (Value& value : ValuesOf(std::get<PartRow>(rows[at + i]))) {
          values.push_back(std::move(value));
        }
      }
      Must(bare_->Run(Into(count), values));
    }
    Must(bare_->Execute("COMMIT"));
  }

  static void Print(double ours, double reference) {
    std::printf("%.6f %.6f\n", ours, reference);
    std::fflush(stdout);
  }

  testing::MariaDb server_;
  const std::string cluster_ = "test";
  std::unique_ptr<Catalog> catalog_;
  std::unique_ptr<MysqlSession> bare_;
  Step step_ = 5;
};

}  // namespace
}  // namespace cairn::catalog

int main(int argc, char** argv) {
  using cairn::catalog::Bench;
  const std::map<std::string, void (Bench::*)(int)> rows = {
      {"catalog_commit", &Bench::Commit},
      {"catalog_commit/batch", &Bench::Batch},
      {"catalog_scale", &Bench::Scale},
      {"catalog_scale/latest", &Bench::Latest}};
  const auto row = rows.find(argc > 1 ? argv[1] : "");
  if (row == rows.end()) {
    std::fprintf(stderr, "usage: catalog_bench ROW [PAIRS]\n");
    return 2;
  }
  Bench bench;
  (bench.*row->second)(argc > 2 ? std::atoi(argv[2]) : 9);
  return 0;
}
