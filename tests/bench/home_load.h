// What a job's home has to do with the reports of a job's members.
#pragma once

#include <vector>

namespace cairn::bench {

struct HomeResult {
  // Processor time of a part that is reported, in microseconds, one figure for each sample.
  std::vector<double> few, many;
  int few_writers = 0, many_writers = 0;
};

// 64 members report the parts of jobs of 64 and of 4,096 writers, one part at a time, to one Gathered each:
// that a writer has entered the step, its part with the hashes of ten names, a copy of it on the next member,
// and that the part of three steps before has gone.
HomeResult RunHome(int samples);

}  // namespace cairn::bench
