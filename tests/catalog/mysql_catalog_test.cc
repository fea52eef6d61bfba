// What is MySQL's own: its schema, its users, and a server that is killed, stopped or read-only (R21).
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <openssl/pem.h>
#include <openssl/x509.h>
#include <openssl/x509v3.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <functional>
#include <future>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "server/catalog/mysql_session.h"
#include "server/catalog/schema.h"
#include "tests/catalog/lossy_proxy.h"
#include "tests/catalog/mysql_factory.h"
#include "tests/support/await.h"
#include "tests/support/held_port.h"

namespace cairn::catalog {
namespace {

using ::testing::HasSubstr;

// Writes a key, and a certificate that is its own authority and names a server "localhost".
void WriteCertificate(const std::string& certificate_path, const std::string& key_path) {
  EVP_PKEY* const key = EVP_EC_gen("P-256");
  X509* const certificate = X509_new();
  X509_set_version(certificate, 2);
  ASN1_INTEGER_set(X509_get_serialNumber(certificate), 1);
  X509_gmtime_adj(X509_getm_notBefore(certificate), -3600);
  X509_gmtime_adj(X509_getm_notAfter(certificate), 3600);
  X509_set_pubkey(certificate, key);
  X509_NAME* const name = X509_get_subject_name(certificate);
  X509_NAME_add_entry_by_txt(name, "CN", MBSTRING_ASC,
                             reinterpret_cast<const unsigned char*>("localhost"), -1, -1, 0);
  X509_set_issuer_name(certificate, name);
  for (const auto& [kind, value] : {std::pair(NID_basic_constraints, "critical,CA:TRUE"),
                                    std::pair(NID_subject_alt_name, "DNS:localhost")}) {
    X509_EXTENSION* const extension = X509V3_EXT_conf_nid(nullptr, nullptr, kind, value);
    X509_add_ext(certificate, extension, -1);
    X509_EXTENSION_free(extension);
  }
  X509_sign(certificate, key, EVP_sha256());
  FILE* file = std::fopen(certificate_path.c_str(), "w");
  PEM_write_X509(file, certificate);
  std::fclose(file);
  file = std::fopen(key_path.c_str(), "w");
  PEM_write_PrivateKey(file, key, nullptr, nullptr, 0, nullptr, nullptr);
  std::fclose(file);
  X509_free(certificate);
  EVP_PKEY_free(key);
}

class MysqlCatalogTest : public ::testing::Test {
 protected:
  StatusOr<std::unique_ptr<Catalog>> Open() { return OpenMysqlCatalog(options_); }
  void Run(const std::string& sql) { server_.Run(sql, options_.database); }
  std::string Ask(const std::string& sql) { return server_.Ask(sql, options_.database); }
  // Until it succeeds, or a test gives up.
  static Status Again(const std::function<Status()>& call) {
    Status status;
    (void)testing::Await([&] {
      status = call();
      return status.ok();
    });
    return status;
  }
  // How often a connection has begun to wait for a lock of a row.
  int64_t LockWaits() {
    int64_t waits = -1;
    EXPECT_TRUE(absl::SimpleAtoi(Ask("SELECT VARIABLE_VALUE FROM information_schema.GLOBAL_STATUS "
                                     "WHERE VARIABLE_NAME = 'INNODB_ROW_LOCK_WAITS'"),
                                 &waits));
    return waits;
  }
  const size_t newest_ = kMysqlSchemas.size();
  // The tables of version 1, whose daemons knew of no other.
  void MakeVersion1() {
    for (absl::string_view sql : absl::StrSplit(kMysqlSchemas.at(0), ";\n")) {
      if (absl::StrContains(sql, "INTO") || absl::StrContains(sql, "TABLE")) Run(std::string(sql));
    }
  }
  static PartRow PartOf(int writer, int64_t sequence) {
    return {.part = {{"run", 5, 7, 0}, writer}, .world_size = 64, .sequence = sequence};
  }

  testing::MariaDb& server_ = TheMariaDb();
  MysqlOptions options_ = server_.MakeDatabase();
};

// --- the schema

TEST_F(MysqlCatalogTest, ASchemaThatIsHalfMadeIsFinished) {
  Run("CREATE TABLE schema_version (version INT NOT NULL PRIMARY KEY) ENGINE = InnoDB");
  const auto catalog = Open();
  ASSERT_TRUE(catalog.ok()) << catalog.status();
  EXPECT_TRUE((*catalog)->Apply({JobRow{.job = "run", .sequence = 1}}).ok());
  EXPECT_EQ(Ask("SELECT MAX(version) FROM schema_version"), std::to_string(newest_));
}

// What a daemon of an earlier build left behind.
TEST_F(MysqlCatalogTest, AnOlderVersionIsBroughtUpToDateAndKeepsItsRows) {
  MakeVersion1();
  Run("INSERT INTO steps VALUES ('test', 'run', 5, 7, 0, 1, 'd', 99, 0, 0, 1, 3)");
  const auto catalog = Open();
  ASSERT_TRUE(catalog.ok()) << catalog.status();
  EXPECT_EQ((*(*catalog)->Latest("run"))->checkpoint.step, 5);
  EXPECT_TRUE((*catalog)->Apply({AuthorRow{.name = "0", .sequence = 4}}).ok());
  EXPECT_EQ(Ask("SELECT MAX(version) FROM schema_version"), std::to_string(newest_));
}

TEST_F(MysqlCatalogTest, AnUpgradeThatEndedHalfWayIsFinished) {
  MakeVersion1();
  Run("CREATE INDEX by_attempt ON steps (cluster, job, removed, attempt, step, revision)");
  const auto catalog = Open();
  ASSERT_TRUE(catalog.ok()) << catalog.status();
  EXPECT_EQ(Ask("SELECT MAX(version) FROM schema_version"), std::to_string(newest_));
}

// It is said which version there is, and what is lacking for the next.
TEST_F(MysqlCatalogTest, AnOlderVersionThatMayNotBeChangedIsRefused) {
  MakeVersion1();
  server_.Run(
      absl::StrCat("REVOKE ALL ON ", options_.database, ".* FROM ", options_.user, "@localhost"));
  server_.Run(absl::StrCat("GRANT SELECT, INSERT, UPDATE, DELETE, CREATE ON ", options_.database,
                           ".* TO ", options_.user, "@localhost"));
  const Status refused = Open().status();
  EXPECT_TRUE(absl::IsPermissionDenied(refused)) << refused;
  EXPECT_THAT(refused.message(), HasSubstr("has schema version 1, and version 2 cannot be made"));
  EXPECT_THAT(refused.message(), HasSubstr("INDEX"));
  server_.Run(
      absl::StrCat("GRANT INDEX ON ", options_.database, ".* TO ", options_.user, "@localhost"));
  EXPECT_TRUE(Open().ok()) << "once it may";
}

// "latest" is found by the index, whatever else the job has.
TEST_F(MysqlCatalogTest, LatestIsOneReadByTheIndex) {
  const auto catalog = Open();
  ASSERT_TRUE(catalog.ok());
  std::vector<Row> rows;
  for (Step step = 0; step < 2000; ++step) {
    rows.push_back(StepRow{.checkpoint = {"run", step, 7, 0}, .sequence = step + 1});
  }
  ASSERT_TRUE((*catalog)->Apply(rows).ok());
  ASSERT_TRUE((*catalog)->Latest("run").ok());  // its statement is prepared
  const auto read = [this] {
    return std::stoll(
        Ask("SELECT SUM(variable_value) FROM information_schema.global_status WHERE "
            "variable_name IN ('Handler_read_prev','Handler_read_next',"
            "'Handler_read_rnd_next','Handler_read_key','Handler_read_last',"
            "'Handler_read_first')"));
  };
  const long long idle_before = read();
  const long long idle = read() - idle_before;
  const long long before = read();
  ASSERT_TRUE((*catalog)->Latest("run").ok());
  EXPECT_LT(read() - before - idle, 20);
}

TEST_F(MysqlCatalogTest, ManyMayMakeItAtOnce) {
  std::vector<std::thread> threads;
  std::atomic<int> opened = 0;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      const auto catalog = Open();
      EXPECT_TRUE(catalog.ok()) << catalog.status();
      opened += catalog.ok() ? 1 : 0;
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(opened, 4);
}

TEST_F(MysqlCatalogTest, AnotherVersionIsRefused) {
  ASSERT_TRUE(Open().ok());
  Run("INSERT INTO schema_version VALUES (99)");
  const Status refused = Open().status();
  EXPECT_TRUE(absl::IsFailedPrecondition(refused));
  EXPECT_THAT(refused.message(),
              HasSubstr(absl::StrCat("has schema version 99, this build knows ", newest_)));
}

TEST_F(MysqlCatalogTest, ADatabaseOfSomethingElseIsLeftAlone) {
  Run("CREATE TABLE notes (text BLOB)");
  const Status refused = Open().status();
  EXPECT_TRUE(absl::IsFailedPrecondition(refused));
  EXPECT_THAT(refused.message(), HasSubstr("the table notes"));
  EXPECT_EQ(Ask("SELECT COUNT(*) FROM information_schema.tables WHERE table_schema=DATABASE()"),
            "1");
}

TEST_F(MysqlCatalogTest, ADefaultCollationDoesNotMatter) {
  Run(absl::StrCat("ALTER DATABASE ", options_.database, " COLLATE utf8mb4_general_ci"));
  const auto catalog = Open();
  ASSERT_TRUE(catalog.ok()) << catalog.status();
  ASSERT_TRUE((*catalog)
                  ->Apply({JobRow{.job = "Run", .sequence = 1}, JobRow{.job = "run", .sequence = 1},
                           JobRow{.job = "run ", .sequence = 1}})
                  .ok());
  EXPECT_EQ((*catalog)->Jobs()->size(), 3u);
}

// R35: a job that keeps three steps has rows of three steps and of its last removals, whatever it saved.
TEST_F(MysqlCatalogTest, OldRemovalsAreForgotten) {
  const auto catalog = Open();
  ASSERT_TRUE(catalog.ok());
  constexpr Step kSteps = 1500, kBatch = 100;
  int64_t sequence = 0;
  for (Step first = 0; first < kSteps; first += kBatch) {
    std::vector<Row> rows;
    for (Step step = first; step < first + kBatch; ++step) {
      rows.push_back(PartRow{.part = {{"run", step, 7, 0}, 0}, .sequence = ++sequence});
      rows.push_back(StepRow{.checkpoint = {"run", step, 7, 0}, .sequence = ++sequence});
      if (step < 3) continue;
      rows.push_back(
          StepRow{.checkpoint = {"run", step - 3, 7, 0}, .removed = true, .sequence = ++sequence});
    }
    ASSERT_TRUE((*catalog)->Apply(rows).ok());
  }
  EXPECT_EQ((*catalog)->Steps("run", kSteps, 100)->size(), 3u);
  EXPECT_EQ(Ask("SELECT COUNT(*) FROM steps"), std::to_string(3 + kKeptRemovals));
  EXPECT_EQ(Ask("SELECT COUNT(*) FROM parts"), std::to_string(3 + kKeptRemovals));
}

// --- rights

TEST_F(MysqlCatalogTest, ARefusalSaysWhatIsMissing) {
  MysqlOptions wrong = options_;
  wrong.password = "another";
  const Status password = OpenMysqlCatalog(wrong).status();
  EXPECT_TRUE(absl::IsPermissionDenied(password)) << password;
  EXPECT_THAT(password.message(), ::testing::Not(HasSubstr("another")));
  wrong = options_;
  wrong.database = "nowhere";
  EXPECT_FALSE(OpenMysqlCatalog(wrong).ok());
  server_.Run(absl::StrCat("REVOKE CREATE ON ", options_.database, ".* FROM ", options_.user,
                           "@localhost"));
  const Status create = Open().status();
  EXPECT_TRUE(absl::IsPermissionDenied(create)) << create;
  EXPECT_THAT(create.message(), HasSubstr("CREATE"));
}

// Once the tables are there an administrator may take the others away.
TEST_F(MysqlCatalogTest, ItNeedsNoMoreThanFourRights) {
  ASSERT_TRUE(Open().ok());
  server_.Run(
      absl::StrCat("REVOKE ALL ON ", options_.database, ".* FROM ", options_.user, "@localhost"));
  server_.Run(absl::StrCat("GRANT SELECT, INSERT, UPDATE, DELETE ON ", options_.database, ".* TO ",
                           options_.user, "@localhost"));
  const auto catalog = Open();
  ASSERT_TRUE(catalog.ok()) << catalog.status();
  const StepRow gone{.checkpoint = {"run", 5, 7, 0}, .removed = true, .sequence = 3};
  EXPECT_TRUE((*catalog)->Apply({JobRow{.job = "run", .sequence = 1}, PartOf(0, 2), gone}).ok());
}

TEST_F(MysqlCatalogTest, AUserWhoMayOnlyReadIsToldSo) {
  ASSERT_TRUE(Open().ok());
  server_.Run(
      absl::StrCat("REVOKE ALL ON ", options_.database, ".* FROM ", options_.user, "@localhost"));
  server_.Run(
      absl::StrCat("GRANT SELECT ON ", options_.database, ".* TO ", options_.user, "@localhost"));
  const auto catalog = Open();
  ASSERT_TRUE(catalog.ok()) << catalog.status();
  const Status denied = (*catalog)->Apply({PartOf(0, 1)});
  EXPECT_TRUE(absl::IsPermissionDenied(denied)) << denied;
  EXPECT_THAT(denied.message(), HasSubstr("INSERT"));
  EXPECT_TRUE((*catalog)->Jobs().ok());
}

TEST_F(MysqlCatalogTest, OptionsAreChecked) {
  const auto refuses = [this](auto change, const std::string& field) {
    MysqlOptions options = options_;
    change(&options);
    const Status status = OpenMysqlCatalog(options).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    EXPECT_THAT(status.message(), HasSubstr(field));
  };
  refuses([](MysqlOptions* o) { o->cluster = ""; }, "ring.cluster");
  refuses([](MysqlOptions* o) { o->cluster = std::string(65, 'c'); }, "ring.cluster");
  refuses([](MysqlOptions* o) { o->host = "somewhere"; }, "host");
  refuses([](MysqlOptions* o) { o->socket = ""; }, "host");
  refuses([](MysqlOptions* o) { o->port = 70000; }, "port");
  refuses([](MysqlOptions* o) { o->database = ""; }, "database");
  refuses([](MysqlOptions* o) { o->user = ""; }, "user");
}

// What does not fit is an error, and nothing of the batch is there.
TEST_F(MysqlCatalogTest, NothingIsCutToFit) {
  const auto catalog = Open();
  ASSERT_TRUE(catalog.ok());
  PartRow part = PartOf(0, 1);
  part.owner = std::string(2000, '1');
  EXPECT_FALSE((*catalog)->Apply({JobRow{.job = "run", .sequence = 1}, part}).ok());
  EXPECT_TRUE((*catalog)->Jobs()->empty());
}

// --- TLS

TEST_F(MysqlCatalogTest, WithAnAuthorityOnlyAServerThatItKnowsIsSpokenTo) {
  const std::string right = server_.folder() + "/right.pem", key = server_.folder() + "/right.key";
  const std::string wrong = server_.folder() + "/wrong.pem";
  WriteCertificate(wrong, server_.folder() + "/wrong.key");
  WriteCertificate(right, key);
  options_.host = "localhost";
  const testing::HeldPort port;
  options_.port = port.number();
  options_.socket = "";
  server_.Kill();
  const std::vector<std::string> over_tcp = {"--skip-networking=0", "--bind-address=127.0.0.1",
                                             absl::StrCat("--port=", options_.port)};
  server_.Start(over_tcp);
  EXPECT_TRUE(Open().ok()) << "without TLS";
  options_.tls_ca = right;
  EXPECT_FALSE(Open().ok()) << "the server has none";
  server_.Kill();
  std::vector<std::string> with_tls = over_tcp;
  with_tls.push_back("--ssl-cert=" + right);
  with_tls.push_back("--ssl-key=" + key);
  server_.Start(with_tls);
  server_.Run(absl::StrCat("ALTER USER ", options_.user, "@localhost REQUIRE SSL"));
  const auto catalog = Open();
  ASSERT_TRUE(catalog.ok()) << catalog.status();
  EXPECT_TRUE((*catalog)->Apply({PartOf(0, 1)}).ok());
  options_.tls_ca = wrong;
  EXPECT_FALSE(Open().ok()) << "signed by nobody it knows";
  options_.tls_ca = right;
  options_.host = "127.0.0.1";
  EXPECT_FALSE(Open().ok()) << "the certificate names another host";
  server_.Kill();
  server_.Start();
}

// --- two who write at once

TEST_F(MysqlCatalogTest, WhoWritesTheSameRowsInAnyOrderWaitsOrIsTriedAgain) {
  constexpr int kThreads = 4, kBatches = 20, kRows = 40;
  { ASSERT_TRUE(Open().ok()); }
  std::vector<std::thread> threads;
  for (int thread = 0; thread < kThreads; ++thread) {
    threads.emplace_back([&, thread] {
      const auto catalog = Open();
      ASSERT_TRUE(catalog.ok()) << catalog.status();
      for (int batch = 0; batch < kBatches; ++batch) {
        std::vector<Row> rows;
        for (int i = 0; i < kRows; ++i) {
          rows.push_back(PartOf((i * 7 + thread * 13) % kRows, batch * kThreads + thread + 1));
        }
        rows.push_back(StepRow{.checkpoint = {"run", 5, 7, 0},
                               .world_size = 64,
                               .removed = batch % 2 == 1,
                               .sequence = batch * kThreads + thread + 1});
        const Status status = (*catalog)->Apply(rows);
        EXPECT_TRUE(status.ok()) << status;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  const auto catalog = Open();
  const auto parts = (*catalog)->Parts({"run", 5, 7, 0});
  ASSERT_EQ(parts->size(), static_cast<size_t>(kRows));
  for (const PartRow& part : *parts) EXPECT_EQ(part.sequence, kThreads * kBatches);
}

TEST_F(MysqlCatalogTest, ARowThatSomebodyLocksForAWhileIsTriedAgain) {
  // A lock is waited for half as long, in whole seconds.
  options_.call_timeout_s = static_cast<int>(testing::Patient(int64_t{3}));
  const auto catalog = Open();
  ASSERT_TRUE(catalog.ok());
  ASSERT_TRUE((*catalog)->Apply({PartOf(0, 1)}).ok());
  const auto other = MysqlSession::Connect(options_);
  ASSERT_TRUE(other.ok()) << other.status();
  ASSERT_TRUE((*other)->Execute("START TRANSACTION").ok());
  ASSERT_TRUE((*other)->Execute("UPDATE parts SET bytes = 9").ok());
  const int64_t before = LockWaits();
  auto applied = std::async(std::launch::async, [&] {
    return (*catalog)->Apply({PartOf(0, 2), PartOf(1, 2)});
  });
  // The first try has given up when the second one waits.
  EXPECT_TRUE(testing::Await([&] { return LockWaits() >= before + 2; }));
  EXPECT_TRUE((*other)->Execute("COMMIT").ok());
  const Status status = applied.get();
  EXPECT_TRUE(status.ok()) << status;
  EXPECT_EQ((*catalog)->Parts({"run", 5, 7, 0})->size(), 2u);
}

// --- R21: a server that is away

TEST_F(MysqlCatalogTest, AServerThatIsKilledAndComesBackIsWrittenToAgain) {
  const auto catalog = Open();
  ASSERT_TRUE(catalog.ok());
  ASSERT_TRUE((*catalog)->Apply({PartOf(0, 1)}).ok());
  server_.Kill();
  EXPECT_TRUE(absl::IsUnavailable((*catalog)->Apply({PartOf(1, 2)})));
  EXPECT_TRUE(absl::IsUnavailable((*catalog)->Jobs().status()));
  EXPECT_TRUE(absl::IsUnavailable(Open().status()));
  server_.Start();
  const Status status = Again([&] { return (*catalog)->Apply({PartOf(1, 2)}); });
  EXPECT_TRUE(status.ok()) << status;
  EXPECT_EQ((*catalog)->Parts({"run", 5, 7, 0})->size(), 2u) << "what was committed is there";
}

TEST_F(MysqlCatalogTest, AServerThatStandsStillHoldsNobodyUpForLong) {
  options_.call_timeout_s = 1;
  const auto catalog = Open();
  ASSERT_TRUE(catalog.ok());
  ASSERT_TRUE((*catalog)->Apply({PartOf(0, 1)}).ok());
  server_.Pause(true);
  const auto begun = std::chrono::steady_clock::now();
  const Status status = (*catalog)->Apply({PartOf(1, 2)});
  const auto took = std::chrono::steady_clock::now() - begun;
  server_.Pause(false);
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  EXPECT_LT(took, testing::Patient(std::chrono::seconds(30)));
  const Status again = Again([&] { return (*catalog)->Apply({PartOf(1, 2)}); });
  EXPECT_TRUE(again.ok()) << again;
}

TEST_F(MysqlCatalogTest, AConnectionThatBrokeUnusedIsMadeAnewUnnoticed) {
  const auto catalog = Open();
  ASSERT_TRUE(catalog.ok());
  ASSERT_TRUE((*catalog)->Apply({PartOf(0, 1)}).ok());
  ASSERT_TRUE((*catalog)->Jobs().ok());
  server_.Run(absl::StrCat("KILL USER ", options_.user));
  EXPECT_TRUE((*catalog)->Apply({PartOf(1, 2)}).ok());
  EXPECT_TRUE((*catalog)->Jobs().ok());
}

// Whoever hears nothing of a COMMIT knows nothing of it: it is no success, and to say it again is harmless.
TEST_F(MysqlCatalogTest, AnAnswerThatIsLostAfterTheCommitIsNoSuccessAndMayBeSaidAgain) {
  const std::string path = server_.folder() + "/lossy";
  ::unlink(path.c_str());
  LossyProxy proxy(std::exchange(options_.socket, path), path);
  const auto catalog = Open();
  ASSERT_TRUE(catalog.ok()) << catalog.status();
  ASSERT_TRUE((*catalog)->Apply({PartOf(0, 1), PartOf(1, 1)}).ok());
  const StepRow step{.checkpoint = {"run", 5, 7, 0}, .of_home = true, .sequence = 2};
  const HolderRow holder{.part = PartOf(0, 1).part, .holder = "0", .resident = true, .sequence = 3};
  const std::vector<Row> batch = {step, PartOf(2, 4), holder,
                                  LeftRow{.checkpoint = step.checkpoint, .holder = "1"}};
  proxy.LoseTheAnswerTo("COMMIT");
  const Status lost = (*catalog)->Apply(batch);
  EXPECT_EQ(proxy.lost(), 1);
  EXPECT_TRUE(absl::IsUnavailable(lost)) << lost;
  EXPECT_EQ(Ask("SELECT COUNT(*) FROM parts"), "3") << "the server has done it";
  const Status again = Again([&] { return (*catalog)->Apply(batch); });
  EXPECT_TRUE(again.ok()) << again;
  EXPECT_EQ(Ask("SELECT COUNT(*) FROM parts"), "3");
  EXPECT_EQ(Ask("SELECT COUNT(*) FROM steps"), "1");
  EXPECT_EQ(Ask("SELECT COUNT(*) FROM holders"), "1");
  EXPECT_EQ(Ask("SELECT MAX(sequence) FROM parts"), "4");
}

TEST_F(MysqlCatalogTest, AReadOnlyServerIsAskedAgainLater) {
  const auto catalog = Open();
  ASSERT_TRUE(catalog.ok());
  server_.Run("SET GLOBAL read_only = 1");
  const Status status = (*catalog)->Apply({PartOf(0, 1)});
  server_.Run("SET GLOBAL read_only = 0");
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  EXPECT_TRUE((*catalog)->Apply({PartOf(0, 1)}).ok());
}

}  // namespace
}  // namespace cairn::catalog
