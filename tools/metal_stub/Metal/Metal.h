// Our own declarations of the part of Metal that src/lily_core/device/metal uses (see Foundation.h beside this file).
// facts.json holds what independent sources say about every selector, type encoding and value; tests/tools compares.
#pragma once

#import <Foundation/Foundation.h>

NS_ASSUME_NONNULL_BEGIN

typedef uint64_t MTLGPUAddress;
typedef struct {
  NSUInteger width, height, depth;
} MTLSize;
static inline MTLSize MTLSizeMake(NSUInteger width, NSUInteger height, NSUInteger depth) {
  MTLSize size = {width, height, depth};
  return size;
}

typedef NS_ENUM(NSInteger, MTLGPUFamily){
    MTLGPUFamilyApple7 = 1007,  // M1
    MTLGPUFamilyMetal3 = 5001,
    MTLGPUFamilyMetal4 LILY_SINCE(26.0) = 5002,
};
typedef NS_ENUM(NSUInteger, MTLLanguageVersion){
    MTLLanguageVersion3_1 = (3 << 16) + 1,
    MTLLanguageVersion3_2 LILY_SINCE(15.0) = (3 << 16) + 2,
    MTLLanguageVersion4_0 LILY_SINCE(26.0) = 4 << 16,
};
typedef NS_ENUM(NSInteger, MTLMathMode){
    MTLMathModeSafe LILY_SINCE(15.0) = 0,
    MTLMathModeRelaxed LILY_SINCE(15.0) = 1,
    MTLMathModeFast LILY_SINCE(15.0) = 2,
};
typedef NS_ENUM(NSUInteger, MTLStorageMode){MTLStorageModeShared = 0, MTLStorageModePrivate = 2};
typedef NS_OPTIONS(NSUInteger, MTLResourceOptions){
    MTLResourceStorageModeShared = 0,
    MTLResourceStorageModePrivate = 2 << 4,
    MTLResourceHazardTrackingModeUntracked = 1 << 8,
};
typedef NS_ENUM(NSUInteger, MTLDispatchType){MTLDispatchTypeSerial = 0, MTLDispatchTypeConcurrent = 1};
typedef NS_OPTIONS(NSUInteger, MTLBarrierScope){MTLBarrierScopeBuffers = 1};
typedef NS_OPTIONS(NSUInteger, MTLPipelineOption){MTLPipelineOptionNone = 0, MTLPipelineOptionFailOnBinaryArchiveMiss = 4};
typedef NS_ENUM(NSUInteger, MTLCommandBufferStatus){
    MTLCommandBufferStatusNotEnqueued = 0, MTLCommandBufferStatusEnqueued = 1,  MTLCommandBufferStatusCommitted = 2,
    MTLCommandBufferStatusScheduled = 3,   MTLCommandBufferStatusCompleted = 4, MTLCommandBufferStatusError = 5,
};
typedef NS_ENUM(NSUInteger, MTLCommandBufferError){
    MTLCommandBufferErrorInternal = 1,        MTLCommandBufferErrorTimeout = 2,          MTLCommandBufferErrorPageFault = 3,
    MTLCommandBufferErrorAccessRevoked = 4,   MTLCommandBufferErrorNotPermitted = 7,     MTLCommandBufferErrorOutOfMemory = 8,
    MTLCommandBufferErrorInvalidResource = 9, MTLCommandBufferErrorDeviceRemoved = 11,
};
typedef NS_OPTIONS(NSUInteger, MTLStages){MTLStageDispatch LILY_SINCE(26.0) = 1 << 27};
typedef NS_OPTIONS(NSUInteger, MTL4VisibilityOptions){
    MTL4VisibilityOptionNone LILY_SINCE(26.0) = 0,
    MTL4VisibilityOptionDevice LILY_SINCE(26.0) = 1,
};

@protocol MTLDevice, MTLFunction, MTL4CommandQueue, MTL4CommandAllocator, MTL4CommandBuffer, MTL4ArgumentTable;
@protocol MTL4ComputeCommandEncoder;
@class MTL4ArgumentTableDescriptor;

@protocol MTLAllocation <NSObject>
@property(readonly) NSUInteger allocatedSize;
@end

@protocol MTLResource <MTLAllocation>
@property(nullable, copy, atomic) NSString* label;
@property(readonly) id<MTLDevice> device;
@property(readonly) MTLStorageMode storageMode;
@property(readonly) MTLResourceOptions resourceOptions;
@end

@protocol MTLBuffer <MTLResource>
@property(readonly) NSUInteger length;
- (void*)contents NS_RETURNS_INNER_POINTER;
@property(readonly) MTLGPUAddress gpuAddress LILY_SINCE(13.0);
@end

// ---- From source to pipeline

@interface MTLCompileOptions : NSObject <NSCopying>
@property(readwrite, nonatomic) MTLLanguageVersion languageVersion;
@property(readwrite, nonatomic) MTLMathMode mathMode LILY_SINCE(15.0);
@property(nullable, readwrite, copy, nonatomic) NSDictionary<NSString*, NSObject*>* preprocessorMacros;
@end

@protocol MTLLibrary <NSObject>
@property(nullable, copy, atomic) NSString* label;
@property(readonly) NSArray<NSString*>* functionNames;
- (nullable id<MTLFunction>)newFunctionWithName:(NSString*)name;
@end

@protocol MTLFunction <NSObject>
@property(readonly) NSString* name;
@end

@interface MTLBinaryArchiveDescriptor : NSObject <NSCopying>
@property(nullable, copy, nonatomic) NSURL* url;
@end

@class MTLComputePipelineDescriptor;
@protocol MTLBinaryArchive <NSObject>
@property(nullable, copy, atomic) NSString* label;
- (BOOL)addComputePipelineFunctionsWithDescriptor:(MTLComputePipelineDescriptor*)descriptor
                                            error:(NSError* _Nullable* _Nullable)error;
- (BOOL)serializeToURL:(NSURL*)url error:(NSError* _Nullable* _Nullable)error;
@end

@interface MTLComputePipelineDescriptor : NSObject <NSCopying>
@property(nullable, copy, nonatomic) NSString* label;
@property(nullable, readwrite, nonatomic, strong) id<MTLFunction> computeFunction;
@property(readwrite, nullable, nonatomic, copy) NSArray<id<MTLBinaryArchive>>* binaryArchives LILY_SINCE(11.0);
@end

@class MTLComputePipelineReflection;
typedef __autoreleasing MTLComputePipelineReflection* _Nullable MTLAutoreleasedComputePipelineReflection;
@protocol MTLComputePipelineState <MTLAllocation, NSObject>
@property(readonly) NSUInteger maxTotalThreadsPerThreadgroup;
@property(readonly) NSUInteger threadExecutionWidth;
@property(readonly) NSUInteger staticThreadgroupMemoryLength;
@end

// ---- Residency and events

@interface MTLResidencySetDescriptor : NSObject <NSCopying>
@property(nullable, copy, nonatomic) NSString* label;
@property(nonatomic) NSUInteger initialCapacity;
@end

LILY_SINCE(15.0)
@protocol MTLResidencySet <NSObject>
@property(readonly) uint64_t allocatedSize;
@property(readonly) NSUInteger allocationCount;
- (void)addAllocation:(id<MTLAllocation>)allocation;
- (void)removeAllocation:(id<MTLAllocation>)allocation;
- (void)commit;
- (void)requestResidency;
- (void)endResidency;
@end

@protocol MTLEvent <NSObject>
@property(nullable, copy, atomic) NSString* label;
@end
@protocol MTLSharedEvent <MTLEvent>
@property(readwrite) uint64_t signaledValue;
- (BOOL)waitUntilSignaledValue:(uint64_t)value timeoutMS:(uint64_t)milliseconds LILY_SINCE(12.0);
@end

// ---- Commands, Metal 3

@protocol MTLCommandEncoder <NSObject>
@property(nullable, copy, atomic) NSString* label;
- (void)endEncoding;
@end

@protocol MTLComputeCommandEncoder <MTLCommandEncoder>
- (void)setComputePipelineState:(id<MTLComputePipelineState>)state;
- (void)setBuffer:(nullable id<MTLBuffer>)buffer offset:(NSUInteger)offset atIndex:(NSUInteger)index;
- (void)setBuffers:(const id<MTLBuffer> _Nullable[_Nonnull])buffers
           offsets:(const NSUInteger[_Nonnull])offsets
         withRange:(NSRange)range;
- (void)dispatchThreadgroups:(MTLSize)threadgroups threadsPerThreadgroup:(MTLSize)threads;
- (void)memoryBarrierWithScope:(MTLBarrierScope)scope;
@end

@protocol MTLCommandBuffer;
typedef void (^MTLCommandBufferHandler)(id<MTLCommandBuffer>);
@protocol MTLCommandBuffer <NSObject>
@property(nullable, copy, atomic) NSString* label;
@property(readonly) MTLCommandBufferStatus status;
@property(nullable, readonly) NSError* error;
@property(readonly) CFTimeInterval GPUStartTime;
@property(readonly) CFTimeInterval GPUEndTime;
- (nullable id<MTLComputeCommandEncoder>)computeCommandEncoderWithDispatchType:(MTLDispatchType)type;
- (void)encodeSignalEvent:(id<MTLEvent>)event value:(uint64_t)value;
- (void)encodeWaitForEvent:(id<MTLEvent>)event value:(uint64_t)value;
- (void)addCompletedHandler:(MTLCommandBufferHandler)handler;
- (void)commit;
@end

@protocol MTLCommandQueue <NSObject>
@property(nullable, copy, atomic) NSString* label;
@property(readonly) id<MTLDevice> device;
- (nullable id<MTLCommandBuffer>)commandBufferWithUnretainedReferences;
- (void)addResidencySet:(id<MTLResidencySet>)set LILY_SINCE(15.0);
@end

// ---- Commands, Metal 4

LILY_SINCE(26.0)
@protocol MTL4CommandAllocator <NSObject>
- (void)reset;
@end

LILY_SINCE(26.0)
@interface MTL4ArgumentTableDescriptor : NSObject <NSCopying>
@property(nonatomic) NSUInteger maxBufferBindCount;
@end

LILY_SINCE(26.0)
@protocol MTL4ArgumentTable <NSObject>
- (void)setAddress:(MTLGPUAddress)address atIndex:(NSUInteger)index;
@end

LILY_SINCE(26.0)
@protocol MTL4CommandEncoder <NSObject>
- (void)barrierAfterEncoderStages:(MTLStages)after
              beforeEncoderStages:(MTLStages)before
                visibilityOptions:(MTL4VisibilityOptions)options;
- (void)barrierAfterQueueStages:(MTLStages)after
                   beforeStages:(MTLStages)before
              visibilityOptions:(MTL4VisibilityOptions)options;
- (void)endEncoding;
@end

LILY_SINCE(26.0)
@protocol MTL4ComputeCommandEncoder <MTL4CommandEncoder>
- (void)setComputePipelineState:(id<MTLComputePipelineState>)state;
- (void)setArgumentTable:(nullable id<MTL4ArgumentTable>)table;
- (void)dispatchThreadgroups:(MTLSize)threadgroups threadsPerThreadgroup:(MTLSize)threads;
@end

LILY_SINCE(26.0)
@protocol MTL4CommandBuffer <NSObject>
- (void)beginCommandBufferWithAllocator:(id<MTL4CommandAllocator>)allocator;
- (void)endCommandBuffer;
- (nullable id<MTL4ComputeCommandEncoder>)computeCommandEncoder;
@end

LILY_SINCE(26.0)
@protocol MTL4CommitFeedback <NSObject>
@property(nullable, readonly) NSError* error;
@property(readonly) CFTimeInterval GPUStartTime;
@property(readonly) CFTimeInterval GPUEndTime;
@end
typedef void (^MTL4CommitFeedbackHandler)(id<MTL4CommitFeedback>);

LILY_SINCE(26.0)
@interface MTL4CommitOptions : NSObject
- (void)addFeedbackHandler:(MTL4CommitFeedbackHandler)handler;
@end

LILY_SINCE(26.0)
@protocol MTL4CommandQueue <NSObject>
- (void)commit:(const id<MTL4CommandBuffer> _Nonnull[_Nonnull])buffers
         count:(NSUInteger)count
       options:(MTL4CommitOptions*)options;
- (void)signalEvent:(id<MTLEvent>)event value:(uint64_t)value;
- (void)waitForEvent:(id<MTLEvent>)event value:(uint64_t)value;
- (void)addResidencySet:(id<MTLResidencySet>)set;
@end

// ---- Device

@protocol MTLDevice <NSObject>
@property(readonly) NSString* name;
@property(readonly) BOOL hasUnifiedMemory;
@property(readonly) uint64_t recommendedMaxWorkingSetSize;
@property(readonly) NSUInteger maxBufferLength;
- (BOOL)supportsFamily:(MTLGPUFamily)family;
- (nullable id<MTLBuffer>)newBufferWithLength:(NSUInteger)length options:(MTLResourceOptions)options;
- (nullable id<MTLBuffer>)newBufferWithBytesNoCopy:(void*)address
                                            length:(NSUInteger)length
                                           options:(MTLResourceOptions)options
                                       deallocator:(void (^_Nullable)(void* address, NSUInteger length))deallocator;
- (nullable id<MTLLibrary>)newLibraryWithSource:(NSString*)source
                                        options:(nullable MTLCompileOptions*)options
                                          error:(NSError* _Nullable* _Nullable)error;
- (nullable id<MTLComputePipelineState>)
    newComputePipelineStateWithDescriptor:(MTLComputePipelineDescriptor*)descriptor
                                  options:(MTLPipelineOption)options
                               reflection:(MTLAutoreleasedComputePipelineReflection* _Nullable)reflection
                                    error:(NSError* _Nullable* _Nullable)error;
- (nullable id<MTLBinaryArchive>)newBinaryArchiveWithDescriptor:(MTLBinaryArchiveDescriptor*)descriptor
                                                          error:(NSError* _Nullable* _Nullable)error LILY_SINCE(11.0);
- (nullable id<MTLCommandQueue>)newCommandQueue;
- (nullable id<MTLSharedEvent>)newSharedEvent;
- (nullable id<MTLResidencySet>)newResidencySetWithDescriptor:(MTLResidencySetDescriptor*)descriptor
                                                        error:(NSError* _Nullable* _Nullable)error LILY_SINCE(15.0);
- (nullable id<MTL4CommandQueue>)newMTL4CommandQueue LILY_SINCE(26.0);
- (nullable id<MTL4CommandAllocator>)newCommandAllocator LILY_SINCE(26.0);
- (nullable id<MTL4CommandBuffer>)newCommandBuffer LILY_SINCE(26.0);
- (nullable id<MTL4ArgumentTable>)newArgumentTableWithDescriptor:(MTL4ArgumentTableDescriptor*)descriptor
                                                           error:(NSError* _Nullable* _Nullable)error LILY_SINCE(26.0);
@end

LILY_EXTERN NSErrorDomain const MTLCommandBufferErrorDomain;
LILY_EXTERN id<MTLDevice> _Nullable MTLCreateSystemDefaultDevice(void) NS_RETURNS_RETAINED;

NS_ASSUME_NONNULL_END
