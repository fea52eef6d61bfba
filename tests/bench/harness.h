// What keeps the benches honest: floor and ours interleaved in one run, nine pairs, the median of
// their ratios; the source bytes change before every sample; what was written is read back and
// compared after the clock has stopped, and a wrong byte fails the row; a sample starts with the
// daemon idle; rows that load run in a new process per sample; a reference that is absurdly slow
// makes the row invalid, not the bar easy.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "client/cpp/session.h"
#include "common/fd.h"
#include "common/status.h"
#include "tests/bench/tiny.h"
#include "tests/support/daemon_fixture.h"

namespace cairn::bench {

struct Settings {
  int pairs = Sized(9, 1);
  uint64_t bytes = Sized<uint64_t>(1024, 32) << 20;  // of one checkpoint
  // A node's memory, where a row is about all of it.
  uint64_t node_bytes = Sized<uint64_t>(8192, 256) << 20;
  std::string folder = "/var/tmp";  // absolute, on a disk: where the persist row writes
  std::string program;              // this one, for child processes
};

struct Pair {
  double ours = 0;
  double reference = 0;
};

struct Row {
  std::string name;
  std::string unit;  // of both values: "ms", "us", "MB/s", "calls/s"
  std::string reference;
  double bar = 0;
  bool higher_is_better = false;
  std::vector<Pair> pairs;
  // The reference's median beyond this says that the machine was not fit for measuring; 0: no
  // limit. Below it where higher is better.
  double absurd_reference = 0;
  std::string note;
  // The bar is on our own value, and the reference only stands beside it: there is no ratio.
  bool absolute = false;
};

double Median(std::vector<double> values);

// As one JSON object: what tests/bench/run.py reads, and the values beside it.
std::string RowJson(const Row& row);
std::string RowText(const Row& row);
bool Missed(const Row& row);

double NowMs();

// Memory with every page there already.
class Buffer {
 public:
  static StatusOr<Buffer> Make(uint64_t bytes);
  char* data() const { return mapping_.data(); }
  uint64_t size() const { return mapping_.length(); }
  // Other bytes for every seed, in every page.
  void Fill(uint64_t seed);
  // DATA_LOSS unless it holds what Fill(seed) writes.
  Status Check(uint64_t seed) const;

 private:
  Mapping mapping_;
};

// Until the daemon uses no processor time and has nothing left to fault in or to clear away.
Status WaitIdle(const testing::Daemon& daemon);

// Runs this program as `child` with "name=value" arguments and returns what it printed as such
// lines.
using Values = std::map<std::string, std::string>;
StatusOr<Values> RunChild(const Settings& settings, const std::string& child,
                          const Values& arguments);
double Number(const Values& values, const std::string& name);

Status SaveOne(client::Session* session, Step step, const Buffer& source);
Status ReadBack(client::Session* session, Step step, const Buffer& into);

// MB/s of fio's best engine, 4 MiB direct: of reading `file` into huge pages, or of writing it anew, to the end of
// an fsync; then the file goes.
StatusOr<double> BestFio(const std::string& file, uint64_t bytes, bool read);

// The rows, and the halves of them that run in a process of their own.
StatusOr<Row> SaveWarm(const Settings& settings);
StatusOr<Row> SaveStanding(const Settings& settings);
StatusOr<Row> SaveNewClient(const Settings& settings);
StatusOr<Row> SaveEarly(const Settings& settings);
StatusOr<Row> Prefault(const Settings& settings);
StatusOr<Row> LoadRead(const Settings& settings);
StatusOr<Row> LoadMap(const Settings& settings);
StatusOr<Row> LoadMapNext(const Settings& settings);
StatusOr<Row> Persist(const Settings& settings);
StatusOr<Row> Restart(const Settings& settings);
StatusOr<Row> RpcRate(const Settings& settings);
StatusOr<Row> Stall(const Settings& settings);
StatusOr<Row> RestartLarge(const Settings& settings);
StatusOr<Row> TcpRead(const Settings& settings);
StatusOr<Row> StreamStorage(const Settings& settings);
StatusOr<Row> FirstLayer(const Settings& settings);

StatusOr<Values> SaveNewClientChild(const Values& arguments);
StatusOr<Values> StandingHolderChild(const Values& arguments);
StatusOr<Values> LoadReadChild(const Values& arguments);
StatusOr<Values> LoadMapChild(const Values& arguments);
StatusOr<Values> EchoChild(const Values& arguments);
StatusOr<Values> StallStatChild(const Values& arguments);
StatusOr<Values> StallEchoChild(const Values& arguments);
StatusOr<Values> TcpReadChild(const Values& arguments);
StatusOr<Values> FirstLayerChild(const Values& arguments);

}  // namespace cairn::bench
