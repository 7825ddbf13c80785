// Libraries, functions, pipelines and binary archives.
#include <fstream>
#include <set>

#include "double.h"

using softmetal::refuse;
using softmetal::report;

namespace {

constexpr NSUInteger kMaxThreads = 1024;
constexpr NSUInteger kMaxThreadgroupBytes = 32768;
constexpr const char* kArchiveHead = "software Metal archive 1";

NSUInteger threadgroup_bytes(const msl_kernel& kernel) { return NSUInteger(kernel.static_end - kernel.static_begin); }

}  // namespace

@implementation MTLCompileOptions
@synthesize languageVersion, mathMode, preprocessorMacros;
@end
@implementation MTLBinaryArchiveDescriptor
@synthesize url;
@end
@implementation MTLComputePipelineDescriptor
@synthesize label, computeFunction, binaryArchives;
@end

@implementation SoftFunction
@synthesize name, pipeline, digest;
@end

@implementation SoftLibrary {
  std::shared_ptr<softmetal::ShaderLibrary> shader_;
  std::size_t digest_;
}
@synthesize label;
- (instancetype)initWithShader:(std::shared_ptr<softmetal::ShaderLibrary>)shader digest:(std::size_t)digest {
  if ((self = [super init])) {
    shader_ = std::move(shader);
    digest_ = digest;
  }
  return self;
}
- (NSArray<NSString*>*)functionNames {
  std::vector<NSString*> names;
  const msl_library& exports = shader_->exports();
  for (unsigned i = 0; i < exports.num_kernels; ++i) names.push_back(softmetal::ns(exports.kernels[i].name));
  return [NSArray arrayWithObjects:names.data() count:names.size()];
}
- (id<MTLFunction>)newFunctionWithName:(NSString*)name {
  const msl_kernel* kernel = shader_->find(name.UTF8String);
  if (!kernel) return nil;
  SoftFunction* function = [SoftFunction new];
  function.name = name;
  function.pipeline = {shader_, kernel};
  function.digest = digest_;
  return function;
}
@end

@implementation SoftPipeline {
  softmetal::Pipeline pipeline_;
}
- (instancetype)initWithPipeline:(softmetal::Pipeline)pipeline {
  if ((self = [super init])) pipeline_ = std::move(pipeline);
  return self;
}
- (softmetal::Pipeline)pipeline {
  return pipeline_;
}
- (NSUInteger)maxTotalThreadsPerThreadgroup {
  return kMaxThreads;
}
- (NSUInteger)threadExecutionWidth {
  return 32;
}
- (NSUInteger)staticThreadgroupMemoryLength {
  return threadgroup_bytes(*pipeline_.kernel);
}
- (NSUInteger)allocatedSize {
  return 0;
}
@end

// A list of functions; on a Mac their machine code would be beside them.
@implementation SoftBinaryArchive {
  std::set<std::string> entries_;
}
@synthesize label;
static std::string entry(SoftFunction* function) {
  return std::string(function.name.UTF8String) + " " + std::to_string(function.digest);
}
- (BOOL)load:(NSString*)path error:(NSError**)error {
  std::ifstream file(path.UTF8String);
  std::string line;
  if (!file || !std::getline(file, line) || line != kArchiveHead) {
    refuse(error, std::string(path.UTF8String) + " is no binary archive");
    return NO;
  }
  while (std::getline(file, line)) entries_.insert(line);
  return YES;
}
- (BOOL)contains:(SoftFunction*)function {
  return entries_.count(entry(function)) != 0;
}
- (BOOL)addComputePipelineFunctionsWithDescriptor:(MTLComputePipelineDescriptor*)descriptor error:(NSError**)error {
  if (!descriptor.computeFunction) {
    refuse(error, "the descriptor has no function");
    return NO;
  }
  entries_.insert(entry(static_cast<SoftFunction*>(descriptor.computeFunction)));
  return YES;
}
- (BOOL)serializeToURL:(NSURL*)url error:(NSError**)error {
  std::ofstream file(url.path.UTF8String);
  file << kArchiveHead << "\n";
  for (const std::string& line : entries_) file << line << "\n";
  file.close();
  if (file) return YES;
  refuse(error, std::string("cannot write ") + url.path.UTF8String);
  return NO;
}
@end

namespace softmetal {

id<MTLLibrary> make_library(NSString* source, MTLCompileOptions* options, NSError** error) {
  std::map<std::string, std::string> macros;
  for (NSUInteger i = 0; i < options.preprocessorMacros.allKeys.count; ++i) {
    NSString* name = options.preprocessorMacros.allKeys[i];
    macros[name.UTF8String] = [options.preprocessorMacros objectForKey:name].description.UTF8String;
  }
  const MTLMathMode mode = options ? options.mathMode : MTLMathModeFast;  // Metal's default
  const char* math = mode == MTLMathModeSafe ? "safe" : mode == MTLMathModeRelaxed ? "relaxed" : "fast";
  try {
    const std::string text = source.UTF8String;
    auto shader = compile_shader(text, macros, math);
    return [[SoftLibrary alloc] initWithShader:std::move(shader) digest:std::hash<std::string>()(text + math)];
  } catch (const CompileError& failure) {
    return refuse(error, failure.what());
  }
}

id<MTLComputePipelineState> make_pipeline(MTLComputePipelineDescriptor* descriptor, MTLPipelineOption option,
                                          NSError** error) {
  if (!descriptor.computeFunction) return refuse(error, "the descriptor has no function");
  SoftFunction* function = static_cast<SoftFunction*>(descriptor.computeFunction);
  if (option & MTLPipelineOptionFailOnBinaryArchiveMiss) {
    bool found = false;
    for (NSUInteger i = 0; i < descriptor.binaryArchives.count; ++i)
      found = found || [static_cast<SoftBinaryArchive*>(descriptor.binaryArchives[i]) contains:function];
    if (!found) return refuse(error, std::string(function.name.UTF8String) + " is in none of the binary archives");
  }
  const NSUInteger bytes = threadgroup_bytes(*function.pipeline.kernel);
  if (bytes > kMaxThreadgroupBytes)
    return refuse(error, std::string(function.name.UTF8String) + " declares " + std::to_string(bytes) +
                             " bytes of threadgroup memory, the limit is " + std::to_string(kMaxThreadgroupBytes));
  return [[SoftPipeline alloc] initWithPipeline:function.pipeline];
}

}  // namespace softmetal
